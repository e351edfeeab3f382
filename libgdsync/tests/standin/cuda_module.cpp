// CUDA's modules, which are PTX, and its launches.
#include <cctype>
#include <cstdlib>
#include <cstring>

#include "module.hpp"

using namespace standin;

namespace {

// Whether the text is PTX: comments, then its version.
bool is_ptx(const char* text) {
    for (;;) {
        while (isspace(static_cast<unsigned char>(*text)) != 0) text++;
        if (strncmp(text, "//", 2) != 0) break;
        while (*text != '\0' && *text != '\n') text++;
    }
    return strncmp(text, ".version", 8) == 0 && strstr(text, ".target") != nullptr;
}

}  // namespace

namespace standin {

bool find_entry(const Module& module, const std::string& name, u64* params) {
    const std::string& text = module.text;
    const std::string head = ".entry " + name + "(";
    const size_t at = text.find(head);
    if (at == std::string::npos) return false;
    const std::string list = text.substr(at + head.size(), text.find(')', at) - at - head.size());
    const size_t bytes = list.find(".b8 "), open = list.find('[');
    *params = bytes != std::string::npos && open != std::string::npos ? strtoull(list.c_str() + open + 1, nullptr, 10) : 0;
    return true;
}

bool eager() {
    const char* mode = getenv("CUDA_MODULE_LOADING");
    return mode != nullptr && strcmp(mode, "EAGER") == 0;
}

}  // namespace standin

STANDIN_API int cuModuleLoadData(Module** out, const char* image) {
    return call("cuModuleLoadData", Need::context, [&](Machine& m, Lock& lock) -> int {
        if (image == nullptr || !is_ptx(image)) return kInvalidImage;
        auto module = std::make_unique<Module>();
        module->context = current_context();
        module->text = image;
        const int code = settle(lock, "cuModuleLoadData", module->context);
        if (code != kOk) return code;
        *out = module.get();
        m.modules[*out] = std::move(module);
        return kOk;
    });
}

STANDIN_API int cuFuncLoad(void* handle) {
    return call("cuFuncLoad", Need::context, [&](Machine& m, Lock& lock) -> int {
        Function* f = function(m, handle);
        return f == nullptr ? kInvalidHandle : load(lock, "cuFuncLoad", f);
    }, handle);
}

STANDIN_API int cuFuncSetAttribute(void* handle, int attribute, int value) {
    return call("cuFuncSetAttribute", Need::context, [&](Machine& m, Lock&) -> int {
        constexpr int kPreferredCarveout = 9;
        if (function(m, handle) == nullptr) return kInvalidHandle;
        return attribute == kPreferredCarveout && value >= -1 && value <= 100 ? kOk : kInvalidValue;
    }, handle, static_cast<u64>(attribute), static_cast<u64>(value));
}

STANDIN_API int cuLaunchKernel(void* handle, u32 gx, u32 gy, u32 gz, u32 bx, u32 by, u32 bz, u32 shared, void* stream_handle,
                               void** each, void** extra) {
    return call("cuLaunchKernel", Need::context, [&](Machine& m, Lock& lock) -> int {
        const u32 grid_size[3] = {gx, gy, gz}, block_size[3] = {bx, by, bz};
        return launch(m, lock, "cuLaunchKernel", handle, grid_size, block_size, shared, stream_handle, each, extra);
    }, handle, u64{gx}, u64{gy}, u64{gz}, u64{bx}, u64{by}, u64{bz}, u64{shared}, stream_handle);
}

// A dependent launch is one like any other: no kernel starts early here.
STANDIN_API int cuLaunchKernelEx(const LaunchConfig* config, void* handle, void** each, void** extra) {
    return call("cuLaunchKernelEx", Need::context, [&](Machine& m, Lock& lock) -> int {
        constexpr int kStreamSerialization = 6;
        for (u32 i = 0; i < config->count; i++) {
            const LaunchAttribute& attribute = config->attributes[i];
            if (attribute.id != kStreamSerialization || attribute.value.number < 0 || attribute.value.number > 1) return kInvalidValue;
            if (m.attribute(kComputeMajor) < 9) return kNotSupported;
        }
        return launch(m, lock, "cuLaunchKernelEx", handle, config->grid, config->block, config->shared, config->stream, each, extra);
    }, handle, u64{config->count}, config->stream);
}
