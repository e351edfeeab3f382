// Modules: the PTX text names the kernels; they run as the host compiler built them.
#include <dlfcn.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "machine.hpp"

using namespace standin;

namespace {

void* self() {
    static void* handle = [] {
        Dl_info info;
        if (dladdr(reinterpret_cast<void*>(&self), &info) == 0) return static_cast<void*>(nullptr);
        return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    }();
    return handle;
}

// Whether the text is PTX: comments, then its version.
bool is_ptx(const char* text) {
    for (;;) {
        while (isspace(static_cast<unsigned char>(*text)) != 0) text++;
        if (strncmp(text, "//", 2) != 0) break;
        while (*text != '\0' && *text != '\n') text++;
    }
    return strncmp(text, ".version", 8) == 0 && strstr(text, ".target") != nullptr;
}

// The bytes of a kernel's only parameter, a structure; 0 if it has none, or another kind of
// parameter.
bool find_entry(const std::string& text, const std::string& name, u64* params) {
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

Function* function(Machine& m, void* handle) {
    for (auto& [key, module] : m.modules) {
        for (auto& [name, function] : module->functions) {
            if (&function == handle) return &function;
        }
    }
    return nullptr;
}

// Code is loaded onto the device at its first use, and the load blocks behind waits.
int load(Lock& lock, const char* name, Function* function) {
    if (function->loaded) return kOk;
    const int code = settle(lock, name, function->module->context);
    if (code == kOk) function->loaded = true;
    return code;
}

int parameters(const Function& function, void** each, void** extra, std::vector<char>* out) {
    out->resize(function.params);
    if (function.params == 0) return kOk;
    if (each != nullptr) {
        memcpy(out->data(), each[0], function.params);
        return kOk;
    }
    const void* buffer = nullptr;
    size_t size = 0;
    for (; extra != nullptr && *extra != nullptr; extra += 2) {
        if (bits(extra[0]) == 1) buffer = extra[1];
        if (bits(extra[0]) == 2) size = *static_cast<size_t*>(extra[1]);
    }
    if (buffer == nullptr || size != function.params) return kInvalidValue;
    memcpy(out->data(), buffer, size);
    return kOk;
}

int launch(Machine& m, Lock& lock, const char* name, void* handle, const u32 grid_size[3], const u32 block_size[3], u32 shared,
           void* stream_handle, void** each, void** extra) {
    Function* f = function(m, handle);
    if (f == nullptr) return kInvalidHandle;
    Stream* stream = m.stream(stream_handle, current_context());
    if (stream == nullptr) return kInvalidHandle;
    if (stream->context != current_context() || f->module->context != stream->context) return kInvalidContext;
    const u64 threads = u64{block_size[0]} * block_size[1] * block_size[2], blocks = u64{grid_size[0]} * grid_size[1] * grid_size[2];
    if (blocks == 0 || threads == 0 || threads > 1024 || (each != nullptr && extra != nullptr)) return kInvalidValue;
    if (shared > static_cast<u32>(m.attribute(kMaxSharedPerBlock))) return kInvalidValue;
    std::vector<char> params;
    int code = parameters(*f, each, extra, &params);
    if (code != kOk) return code;
    if (m.log.on) {
        std::string line = "kernel " + f->name + " ";
        char text[8];
        for (const char byte : params) {
            snprintf(text, sizeof text, "%02x", static_cast<unsigned char>(byte));
            line += text;
        }
        m.log.note(line);
    }
    // A kernel that is not loaded yet blocks behind every wait of the context.
    if ((code = load(lock, name, f)) != kOk) return code;
    return enqueue(lock, stream, grid(f->entry, grid_size, block_size, shared, std::move(params)), true);
}

}  // namespace

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

STANDIN_API int cuModuleUnload(Module* module) {
    return call("cuModuleUnload", Need::context, [&](Machine& m, Lock& lock) -> int {
        if (m.modules.count(module) == 0) return kInvalidHandle;
        const int code = settle(lock, "cuModuleUnload", module->context);
        if (code == kOk) m.modules.erase(module);
        return code;
    }, module);
}

STANDIN_API int cuModuleGetFunction(Function** out, Module* module, const char* name) {
    return call("cuModuleGetFunction", Need::context, [&](Machine& m, Lock&) -> int {
        if (m.modules.count(module) == 0) return kInvalidHandle;
        m.log.note(name);
        u64 params;
        if (!find_entry(module->text, name, &params)) return kNotFound;
        void* entry = dlsym(self(), name);
        if (entry == nullptr) return kNotFound;
        auto made = module->functions.try_emplace(name, Function{name, module, reinterpret_cast<Entry>(entry), params, eager()});
        *out = &made.first->second;
        return kOk;
    }, module);
}

STANDIN_API int cuFuncLoad(void* handle) {
    return call("cuFuncLoad", Need::context, [&](Machine& m, Lock& lock) -> int {
        Function* f = function(m, handle);
        return f == nullptr ? kInvalidHandle : load(lock, "cuFuncLoad", f);
    }, handle);
}

STANDIN_API int cuFuncGetAttribute(int* value, int attribute, void* handle) {
    return call("cuFuncGetAttribute", Need::context, [&](Machine& m, Lock& lock) -> int {
        Function* f = function(m, handle);
        if (f == nullptr) return kInvalidHandle;
        constexpr int kThreads = 0;
        *value = attribute == kThreads ? 1024 : 0;
        return load(lock, "cuFuncGetAttribute", f);
    }, static_cast<u64>(attribute), handle);
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
