// AMD's code objects, as far as the stand-ins read and write them.
#pragma once

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace standin {

constexpr uint16_t kAmdGpu = 224;       // EM_AMDGPU
constexpr uint32_t kMetadataNote = 32;  // NT_AMDGPU_METADATA

// The processor of a target, as the flags of its code objects have it; 0 if it is unknown.
inline uint32_t processor(const std::string& target) {
    return target == "gfx90a" ? 0x3f : target == "gfx942" ? 0x4c : target == "gfx1100" ? 0x41 : target == "gfx908" ? 0x30 : 0;
}

// A code object without instructions: kernels with the size of their only argument.
inline std::string code_object(uint32_t processor, const std::vector<std::pair<std::string, uint32_t>>& kernels) {
    auto text = [](const std::string& s) { return std::string("\xd9") + static_cast<char>(s.size()) + s; };
    auto number = [](uint32_t n) {
        std::string out("\xce");
        for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(n >> shift);
        return out;
    };
    std::string metadata = "\x81" + text("amdhsa.kernels") + "\xdd" + number(static_cast<uint32_t>(kernels.size())).substr(1);
    std::string names(1, '\0');
    std::vector<Elf64_Sym> symbols(1);
    for (auto& [name, bytes] : kernels) {
        metadata += "\x82" + text(".name") + text(name) + text(".args") + "\x91\x83" + text(".offset") + std::string(1, '\0') + text(".size") +
                    number(bytes) + text(".value_kind") + text("by_value");
        Elf64_Sym symbol{};
        symbol.st_name = static_cast<Elf64_Word>(names.size());
        symbol.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT);
        symbols.push_back(symbol);
        names += name + ".kd" + std::string(1, '\0');
    }
    const Elf64_Nhdr note{7, static_cast<Elf64_Word>(metadata.size()), kMetadataNote};
    const std::string notes = std::string(reinterpret_cast<const char*>(&note), sizeof note) + std::string("AMDGPU\0\0", 8) + metadata;

    Elf64_Ehdr header{};
    memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_machine = kAmdGpu;
    header.e_flags = processor;
    header.e_shoff = sizeof header;
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = 4;
    Elf64_Shdr sections[4] = {};
    std::string body;
    auto add = [&](int i, uint32_t type, const std::string& data) {
        body.resize((body.size() + 7) / 8 * 8);
        sections[i].sh_type = type;
        sections[i].sh_offset = sizeof header + sizeof sections + body.size();
        sections[i].sh_size = data.size();
        body += data;
    };
    add(1, SHT_DYNSYM, std::string(reinterpret_cast<const char*>(symbols.data()), symbols.size() * sizeof symbols[0]));
    add(2, SHT_STRTAB, names);
    add(3, SHT_NOTE, notes);
    sections[1].sh_link = 2;
    return std::string(reinterpret_cast<const char*>(&header), sizeof header) + std::string(reinterpret_cast<const char*>(sections), sizeof sections) +
           body;
}

}  // namespace standin
