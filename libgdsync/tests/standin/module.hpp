// What the modules of both drivers share.
#pragma once

#include "machine.hpp"

namespace standin {

// The bytes of a kernel's only parameter, a structure; 0 if it has none, or another kind of
// parameter. False if the module has no kernel of this name.
bool find_entry(const Module& module, const std::string& name, u64* params);
// Whether kernels are loaded with their module, and not when they are first used.
bool eager();

Function* function(Machine& m, void* handle);
int load(Lock& lock, const char* name, Function* function);
int launch(Machine& m, Lock& lock, const char* name, void* handle, const u32 grid_size[3], const u32 block_size[3], u32 shared,
           void* stream_handle, void** each, void** extra);

}  // namespace standin
