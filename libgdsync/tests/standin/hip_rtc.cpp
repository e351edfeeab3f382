// HIP's compiler. It makes the code object in the file STANDIN_RTC_CODE for the target of its options,
// from a source that has all kernels of that code object. It refuses each source with the text
// STANDIN_RTC_ERROR if that is set.
#include <elf.h>

#include <atomic>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "abi.hpp"
#include "code_object.hpp"

using namespace standin;

namespace {

enum Result : int {
    kDone = 0,
    kInvalidInput = 3,
    kInvalidProgram = 4,
    kInvalidOption = 5,
    kCompilation = 6,
    kInternal = 11,
};

struct Program {
    std::string source, log, code;
};

std::atomic<u64> compilations{0};

// Whether the source has all kernels of the code object, which are its symbols NAME.kd.
bool has_kernels(const std::string& source, const std::string& code) {
    size_t found = 0;
    for (size_t end = code.find(".kd"); end != std::string::npos; end = code.find(".kd", end + 1)) {
        size_t start = end;
        while (start > 0 && (isalnum(static_cast<unsigned char>(code[start - 1])) || code[start - 1] == '_')) start--;
        if (source.find(code.substr(start, end - start)) == std::string::npos) return false;
        found++;
    }
    return found > 0;
}

int give(const std::string& text, char* out) {
    if (out == nullptr) return kInvalidInput;
    memcpy(out, text.data(), text.size());
    return kDone;
}

}  // namespace

STANDIN_API int hiprtcVersion(int* major, int* minor) {
    const char* text = getenv("STANDIN_RTC_VERSION");
    *major = text != nullptr ? atoi(text) : 7;
    *minor = 0;
    return kDone;
}

STANDIN_API int hiprtcCreateProgram(Program** out, const char* source, const char*, int headers, const char**, const char**) {
    if (out == nullptr || source == nullptr || headers != 0) return kInvalidInput;
    *out = new Program{source, {}, {}};
    return kDone;
}

STANDIN_API int hiprtcCompileProgram(Program* program, int n, const char** options) {
    if (program == nullptr) return kInvalidProgram;
    compilations++;
    std::string target;
    for (int i = 0; i < n; i++) {
        const std::string option = options[i], arch = "--offload-arch=";
        if (option.rfind(arch, 0) == 0) {
            target = option.substr(arch.size());
        } else if (option != "-std=c++17" && option != "-O3") {
            return kInvalidOption;
        }
    }
    // Features, such as :sramecc+, are no part of the processor.
    const u32 flags = processor(target.substr(0, target.find(':')));
    const char *error = getenv("STANDIN_RTC_ERROR"), *path = getenv("STANDIN_RTC_CODE");
    if (flags == 0) program->log = "error: unknown target '" + target + "'";
    if (error != nullptr) program->log = error;
    if (!program->log.empty()) return kCompilation;
    std::ifstream file(path != nullptr ? path : "", std::ios::binary);
    std::string code{std::istreambuf_iterator<char>(file), {}};
    if (code.size() < sizeof(Elf64_Ehdr) || !has_kernels(program->source, code)) return kInternal;
    reinterpret_cast<Elf64_Ehdr*>(&code[0])->e_flags = flags;
    program->code = std::move(code);
    return kDone;
}

STANDIN_API int hiprtcGetProgramLogSize(Program* program, size_t* bytes) {
    *bytes = program->log.size() + 1;
    return kDone;
}

STANDIN_API int hiprtcGetProgramLog(Program* program, char* out) { return give(program->log + '\0', out); }

STANDIN_API int hiprtcGetCodeSize(Program* program, size_t* bytes) {
    *bytes = program->code.size();
    return kDone;
}

STANDIN_API int hiprtcGetCode(Program* program, char* out) { return give(program->code, out); }

STANDIN_API int hiprtcDestroyProgram(Program** program) {
    if (program == nullptr || *program == nullptr) return kInvalidProgram;
    delete *program;
    *program = nullptr;
    return kDone;
}

STANDIN_API const char* hiprtcGetErrorString(int result) {
    return result == kCompilation ? "HIPRTC_ERROR_COMPILATION" : "HIPRTC_ERROR_OTHER";
}

// Number of compilations of this process.
STANDIN_API u64 standin_compilations() { return compilations; }
