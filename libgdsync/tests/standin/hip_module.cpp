// HIP's modules, which are code objects: ELF files whose metadata name the kernels. And its launches.
#include <elf.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "code_object.hpp"
#include "module.hpp"

using namespace standin;

namespace {

// A reader of MessagePack, the format of the metadata.
struct Reader {
    const unsigned char *at, *end;
    bool bad = false;

    u64 number(unsigned bytes) {
        u64 value = 0;
        for (; bytes > 0; bytes--) value = value << 8 | (at < end ? *at++ : (bad = true, 0u));
        return value;
    }

    // The next value: `n` entries of a map or an array, a number, or a text. Any other is skipped.
    enum Type { map, array, integer, text, other } type;
    u64 n;
    std::string string;

    void next() {
        const u64 tag = number(1);
        n = 0;
        if (tag <= 0x7f) return set(integer, tag);
        if (tag <= 0x8f) return set(map, tag & 15);
        if (tag <= 0x9f) return set(array, tag & 15);
        if (tag <= 0xbf) return read(tag & 31);
        switch (tag) {
            case 0xcc:
            case 0xcd:
            case 0xce:
            case 0xcf: return set(integer, number(1u << (tag - 0xcc)));
            case 0xd0:
            case 0xd1:
            case 0xd2:
            case 0xd3: return set(integer, number(1u << (tag - 0xd0)));
            case 0xd9:
            case 0xda:
            case 0xdb: return read(number(1u << (tag - 0xd9)));
            case 0xdc:
            case 0xdd: return set(array, number(tag == 0xdc ? 2 : 4));
            case 0xde:
            case 0xdf: return set(map, number(tag == 0xde ? 2 : 4));
            // Nil and the two truths; nothing else is in metadata.
            default: bad |= tag > 0xc3; return set(other, 0);
        }
    }

    void set(Type now, u64 value) {
        type = now;
        n = value;
    }

    void read(u64 len) {
        type = text;
        if (len > static_cast<u64>(end - at)) {
            bad = true;
            return;
        }
        string.assign(reinterpret_cast<const char*>(at), len);
        at += len;
    }

    void skip() {
        next();
        for (u64 left = type == map ? 2 * n : type == array ? n : 0; left > 0 && !bad; left--) skip();
    }

    // Calls `entry` with each key of the map that comes next; `entry` reads or skips the value.
    template <class Entry>
    void each_key(Entry entry) {
        next();
        if (type != map) bad = true;
        for (u64 left = bad ? 0 : n; left > 0 && !bad; left--) {
            next();
            const std::string key = string;
            bad |= type != text;
            if (!bad) entry(key);
        }
    }

    template <class Entry>
    void each_element(Entry entry) {
        next();
        if (type != array) bad = true;
        for (u64 left = bad ? 0 : n; left > 0 && !bad; left--) entry();
    }
};

// The end of an explicit argument; 0 for a hidden one.
u64 argument_end(Reader& r) {
    u64 offset = 0, size = 0;
    bool hidden = false;
    r.each_key([&](const std::string& key) {
        if (key != ".offset" && key != ".size" && key != ".value_kind") return r.skip();
        r.next();
        if (key == ".offset") offset = r.n;
        if (key == ".size") size = r.n;
        if (key == ".value_kind") hidden = r.string.rfind("hidden_", 0) == 0;
    });
    return hidden ? 0 : offset + size;
}

// The kernels of the metadata, with the size of their explicit arguments.
bool kernels_of(const unsigned char* at, u64 len, std::map<std::string, u64>* out) {
    Reader r{at, at + len};
    r.each_key([&](const std::string& key) {
        if (key != "amdhsa.kernels") return r.skip();
        r.each_element([&] {
            std::string name;
            u64 bytes = 0;
            r.each_key([&](const std::string& key) {
                if (key == ".name") {
                    r.next();
                    name = r.string;
                } else if (key == ".args") {
                    r.each_element([&] { bytes = std::max(bytes, argument_end(r)); });
                } else {
                    r.skip();
                }
            });
            (*out)[name] = bytes;
        });
    });
    return !r.bad;
}

// An array of `n` structures at `offset`. The length of an image is not known to a driver.
template <class T>
const T* part(const char* image, u64 offset) {
    return reinterpret_cast<const T*>(image + offset);
}

// Reads a code object for this device.
int parse(const char* image, std::map<std::string, u64>* out) {
    if (image == nullptr || memcmp(image, ELFMAG, SELFMAG) != 0 || image[EI_CLASS] != ELFCLASS64) return kInvalidImage;
    const auto* header = part<Elf64_Ehdr>(image, 0);
    if (header->e_machine != kAmdGpu) return kInvalidImage;
    const char* target = getenv("STANDIN_ARCH");
    if ((header->e_flags & 0xff) != processor(target != nullptr ? target : "gfx942")) return kNoBinaryForGpu;
    const auto* sections = part<Elf64_Shdr>(image, header->e_shoff);
    std::set<std::string> symbols;
    std::map<std::string, u64> kernels;
    for (int i = 0; i < header->e_shnum; i++) {
        const Elf64_Shdr& s = sections[i];
        if (s.sh_type == SHT_DYNSYM) {
            const auto* symbol = part<Elf64_Sym>(image, s.sh_offset);
            const char* names = image + sections[s.sh_link].sh_offset;
            for (u64 n = s.sh_size / sizeof *symbol; n > 0; n--, symbol++) symbols.insert(names + symbol->st_name);
        } else if (s.sh_type == SHT_NOTE) {
            const auto* note = part<Elf64_Nhdr>(image, s.sh_offset);
            const char* name = reinterpret_cast<const char*>(note + 1);
            if (note->n_type != kMetadataNote || strcmp(name, "AMDGPU") != 0) continue;
            const char* text = name + (note->n_namesz + 3) / 4 * 4;
            if (!kernels_of(reinterpret_cast<const unsigned char*>(text), note->n_descsz, &kernels)) return kInvalidImage;
        }
    }
    // A kernel has a descriptor and metadata.
    for (auto& [name, bytes] : kernels) {
        if (symbols.count(name + ".kd") != 0) (*out)[name] = bytes;
    }
    return out->empty() ? kInvalidImage : kOk;
}

}  // namespace

namespace standin {

bool find_entry(const Module& module, const std::string& name, u64* params) {
    auto found = module.kernels.find(name);
    if (found == module.kernels.end()) return false;
    *params = found->second;
    return true;
}

bool eager() { return true; }

}  // namespace standin

STANDIN_API int hipModuleLoadData(Module** out, const char* image) {
    return call("hipModuleLoadData", Need::context, [&](Machine& m, Lock& lock) -> int {
        auto module = std::make_unique<Module>();
        module->context = current_context();
        int code = parse(image, &module->kernels);
        if (code == kOk) code = settle(lock, "hipModuleLoadData", module->context);
        if (code != kOk) return code;
        *out = module.get();
        m.modules[*out] = std::move(module);
        return kOk;
    });
}

STANDIN_API int hipModuleLaunchKernel(void* handle, u32 gx, u32 gy, u32 gz, u32 bx, u32 by, u32 bz, u32 shared, void* stream_handle,
                                      void** each, void** extra) {
    return call("hipModuleLaunchKernel", Need::context, [&](Machine& m, Lock& lock) -> int {
        const u32 grid_size[3] = {gx, gy, gz}, block_size[3] = {bx, by, bz};
        return launch(m, lock, "hipModuleLaunchKernel", handle, grid_size, block_size, shared, stream_handle, each, extra);
    }, handle, u64{gx}, u64{gy}, u64{gz}, u64{bx}, u64{by}, u64{bz}, u64{shared}, stream_handle);
}

// A code object for the target with one kernel whose argument has so many bytes: code that a test
// loads. Returns its length, and copies as much of it as `len` allows.
STANDIN_API size_t standin_code_object(const char* target, const char* kernel, u32 bytes, char* out, size_t len) {
    const std::string image = code_object(processor(target), {{kernel, bytes}});
    if (out != nullptr) memcpy(out, image.data(), std::min(len, image.size()));
    return image.size();
}
