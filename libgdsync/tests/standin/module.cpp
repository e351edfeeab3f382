// Modules: their images name the kernels, which run as the host compiler built them.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "module.hpp"

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

}  // namespace

namespace standin {

Function* function(Machine& m, void* handle) {
    for (auto& [key, module] : m.modules) {
        for (auto& [name, function] : module->functions) {
            if (&function == handle) return &function;
        }
    }
    return nullptr;
}

// Code is loaded onto the device at its first use at the latest, and the load blocks behind waits.
int load(Lock& lock, const char* name, Function* function) {
    if (function->loaded) return kOk;
    const int code = settle(lock, name, function->module->context);
    if (code == kOk) function->loaded = true;
    return code;
}

static int parameters(const Function& function, void** each, void** extra, std::vector<char>* out) {
    out->resize(function.params);
    if (function.params == 0) return kOk;
    if (each != nullptr) {
        memcpy(out->data(), each[0], function.params);
        return kOk;
    }
    const void* buffer = nullptr;
    size_t size = 0;
    for (; extra != nullptr && bits(*extra) != kLaunchEnd; extra += 2) {
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
    if (stream == nullptr) return kNoStream;
    if (stream->context != current_context() || f->module->context != stream->context) return kForeignStream;
    const u64 threads = u64{block_size[0]} * block_size[1] * block_size[2], blocks = u64{grid_size[0]} * grid_size[1] * grid_size[2];
    if (blocks == 0 || threads == 0 || threads > 1024 || (each != nullptr && extra != nullptr)) return kInvalidValue;
    if (shared > static_cast<u32>(m.shared_per_block())) return kInvalidValue;
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

}  // namespace standin

STANDIN_API int VENDOR(cuModuleUnload, hipModuleUnload)(Module* module) {
    return call(__func__, Need::context, [&](Machine& m, Lock& lock) -> int {
        if (m.modules.count(module) == 0) return kInvalidHandle;
        const int code = settle(lock, current_call(), module->context);
        if (code == kOk) m.modules.erase(module);
        return code;
    }, module);
}

STANDIN_API int VENDOR(cuModuleGetFunction, hipModuleGetFunction)(Function** out, Module* module, const char* name) {
    return call(__func__, Need::context, [&](Machine& m, Lock&) -> int {
        if (m.modules.count(module) == 0) return kInvalidHandle;
        m.log.note(name);
        u64 params;
        if (!find_entry(*module, name, &params)) return kNotFound;
        void* entry = dlsym(self(), name);
        if (entry == nullptr) return kNotFound;
        auto made = module->functions.try_emplace(name, Function{name, module, reinterpret_cast<Entry>(entry), params, eager()});
        *out = &made.first->second;
        return kOk;
    }, module);
}

STANDIN_API int VENDOR(cuFuncGetAttribute, hipFuncGetAttribute)(int* value, int attribute, void* handle) {
    return call(__func__, Need::context, [&](Machine& m, Lock& lock) -> int {
        Function* f = function(m, handle);
        if (f == nullptr) return kInvalidHandle;
        constexpr int kThreads = 0;
        *value = attribute == kThreads ? 1024 : 0;
        return load(lock, "cuFuncGetAttribute", f);
    }, static_cast<u64>(attribute), handle);
}

