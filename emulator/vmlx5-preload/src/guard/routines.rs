//! The routines of assembly that reach the program's memory.

use std::arch::global_asm;

// Every routine returns a value in rax, and in rdx whether it faulted. None of them touches the
// stack, so that a fault at any of their instructions may go on at `vmlx5_guard_fault`.
global_asm!(
    ".pushsection .text.vmlx5_guard,\"ax\",@progbits",
    ".hidden vmlx5_guard_begin",
    ".globl vmlx5_guard_begin",
    "vmlx5_guard_begin:",
    // Copies rdx bytes, a multiple of 16, from rsi to rdi, in ascending order.
    ".hidden vmlx5_guard_copy",
    ".globl vmlx5_guard_copy",
    "vmlx5_guard_copy:",
    "mov rcx, rdx",
    "shr rcx, 6",
    "jz 3f",
    "2:",
    "movdqu xmm0, [rsi]",
    "movdqu xmm1, [rsi + 16]",
    "movdqu xmm2, [rsi + 32]",
    "movdqu xmm3, [rsi + 48]",
    "movdqu [rdi], xmm0",
    "movdqu [rdi + 16], xmm1",
    "movdqu [rdi + 32], xmm2",
    "movdqu [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "dec rcx",
    "jnz 2b",
    "3:",
    "mov rcx, rdx",
    "and rcx, 48",
    "jz 5f",
    "4:",
    "movdqu xmm0, [rsi]",
    "movdqu [rdi], xmm0",
    "add rsi, 16",
    "add rdi, 16",
    "sub rcx, 16",
    "jnz 4b",
    "5:",
    "xor edx, edx",
    "ret",
    ".hidden vmlx5_guard_load8",
    ".globl vmlx5_guard_load8",
    "vmlx5_guard_load8:",
    "movzx eax, byte ptr [rdi]",
    "xor edx, edx",
    "ret",
    ".hidden vmlx5_guard_load16",
    ".globl vmlx5_guard_load16",
    "vmlx5_guard_load16:",
    "movzx eax, word ptr [rdi]",
    "xor edx, edx",
    "ret",
    ".hidden vmlx5_guard_load32",
    ".globl vmlx5_guard_load32",
    "vmlx5_guard_load32:",
    "mov eax, dword ptr [rdi]",
    "xor edx, edx",
    "ret",
    ".hidden vmlx5_guard_load64",
    ".globl vmlx5_guard_load64",
    "vmlx5_guard_load64:",
    "mov rax, qword ptr [rdi]",
    "xor edx, edx",
    "ret",
    ".hidden vmlx5_guard_store8",
    ".globl vmlx5_guard_store8",
    "vmlx5_guard_store8:",
    "mov byte ptr [rdi], sil",
    "xor edx, edx",
    "ret",
    ".hidden vmlx5_guard_store16",
    ".globl vmlx5_guard_store16",
    "vmlx5_guard_store16:",
    "mov word ptr [rdi], si",
    "xor edx, edx",
    "ret",
    ".hidden vmlx5_guard_store32",
    ".globl vmlx5_guard_store32",
    "vmlx5_guard_store32:",
    "mov dword ptr [rdi], esi",
    "xor edx, edx",
    "ret",
    ".hidden vmlx5_guard_store64",
    ".globl vmlx5_guard_store64",
    "vmlx5_guard_store64:",
    "mov qword ptr [rdi], rsi",
    "xor edx, edx",
    "ret",
    ".hidden vmlx5_guard_swap64",
    ".globl vmlx5_guard_swap64",
    "vmlx5_guard_swap64:",
    "mov rax, rsi",
    "xchg qword ptr [rdi], rax",
    "xor edx, edx",
    "ret",
    // Stores rdx where rsi was.
    ".hidden vmlx5_guard_compare_swap64",
    ".globl vmlx5_guard_compare_swap64",
    "vmlx5_guard_compare_swap64:",
    "mov rax, rsi",
    "lock cmpxchg qword ptr [rdi], rdx",
    "xor edx, edx",
    "ret",
    ".hidden vmlx5_guard_fetch_add64",
    ".globl vmlx5_guard_fetch_add64",
    "vmlx5_guard_fetch_add64:",
    "mov rax, rsi",
    "lock xadd qword ptr [rdi], rax",
    "xor edx, edx",
    "ret",
    // Writes a byte as it is.
    ".hidden vmlx5_guard_touch",
    ".globl vmlx5_guard_touch",
    "vmlx5_guard_touch:",
    "lock or byte ptr [rdi], 0",
    "xor edx, edx",
    "ret",
    ".hidden vmlx5_guard_fault",
    ".globl vmlx5_guard_fault",
    "vmlx5_guard_fault:",
    "xor eax, eax",
    "mov edx, 1",
    "ret",
    ".hidden vmlx5_guard_end",
    ".globl vmlx5_guard_end",
    "vmlx5_guard_end:",
    ".popsection",
);

/// What a routine returns.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Outcome {
    value: u64,
    fault: u64,
}

unsafe extern "C" {
    pub static vmlx5_guard_begin: u8;
    pub static vmlx5_guard_fault: u8;
    pub static vmlx5_guard_end: u8;
    pub fn vmlx5_guard_copy(to: u64, from: u64, len: u64) -> Outcome;
    pub fn vmlx5_guard_load8(at: u64) -> Outcome;
    pub fn vmlx5_guard_load16(at: u64) -> Outcome;
    pub fn vmlx5_guard_load32(at: u64) -> Outcome;
    pub fn vmlx5_guard_load64(at: u64) -> Outcome;
    pub fn vmlx5_guard_store8(at: u64, value: u64) -> Outcome;
    pub fn vmlx5_guard_store16(at: u64, value: u64) -> Outcome;
    pub fn vmlx5_guard_store32(at: u64, value: u64) -> Outcome;
    pub fn vmlx5_guard_store64(at: u64, value: u64) -> Outcome;
    pub fn vmlx5_guard_swap64(at: u64, value: u64) -> Outcome;
    pub fn vmlx5_guard_compare_swap64(at: u64, current: u64, new: u64) -> Outcome;
    pub fn vmlx5_guard_fetch_add64(at: u64, add: u64) -> Outcome;
    pub fn vmlx5_guard_touch(at: u64) -> Outcome;
}

/// A fault happened.
pub struct Fault;

impl Outcome {
    #[inline]
    pub fn get(self) -> Result<u64, Fault> {
        if self.fault == 0 {
            Ok(self.value)
        } else {
            Err(Fault)
        }
    }
}
