//! The assembly routines that access the program's memory.

use std::arch::global_asm;

/// Defines the routines by their arguments, in rdi, rsi and rdx, and their instructions. Every
/// routine returns a value in rax, and in rdx whether it faulted. None of them uses the stack, so
/// that execution can continue at `vmlx5_guard_fault` after a fault at any of their instructions.
macro_rules! routines {
    ($($(#[$doc:meta])* $name:ident($($arg:ident),*): $($instruction:literal)*;)*) => {
        global_asm!(
            ".pushsection .text.vmlx5_guard,\"ax\",@progbits",
            routines!(@label vmlx5_guard_begin),
            $(
                routines!(@label $name),
                $($instruction,)*
                "xor edx, edx",
                "ret",
            )*
            routines!(@label vmlx5_guard_fault),
            "xor eax, eax",
            "mov edx, 1",
            "ret",
            routines!(@label vmlx5_guard_end),
            ".popsection",
        );

        unsafe extern "C" {
            pub static vmlx5_guard_begin: u8;
            pub static vmlx5_guard_fault: u8;
            pub static vmlx5_guard_end: u8;
            $($(#[$doc])* pub fn $name($($arg: u64),*) -> Outcome;)*
        }
    };
    (@label $name:ident) => {
        concat!(
            ".hidden ", stringify!($name), "\n.globl ", stringify!($name), "\n",
            stringify!($name), ":"
        )
    };
}

routines! {
    /// Copies `len` bytes, a multiple of 16, in ascending order.
    vmlx5_guard_copy(to, from, len):
        "mov rcx, rdx"
        "shr rcx, 6"
        "jz 3f"
        "2:"
        "movdqu xmm0, [rsi]"
        "movdqu xmm1, [rsi + 16]"
        "movdqu xmm2, [rsi + 32]"
        "movdqu xmm3, [rsi + 48]"
        "movdqu [rdi], xmm0"
        "movdqu [rdi + 16], xmm1"
        "movdqu [rdi + 32], xmm2"
        "movdqu [rdi + 48], xmm3"
        "add rsi, 64"
        "add rdi, 64"
        "dec rcx"
        "jnz 2b"
        "3:"
        "mov rcx, rdx"
        "and rcx, 48"
        "jz 5f"
        "4:"
        "movdqu xmm0, [rsi]"
        "movdqu [rdi], xmm0"
        "add rsi, 16"
        "add rdi, 16"
        "sub rcx, 16"
        "jnz 4b"
        "5:";
    vmlx5_guard_load8(at): "movzx eax, byte ptr [rdi]";
    vmlx5_guard_load16(at): "movzx eax, word ptr [rdi]";
    vmlx5_guard_load32(at): "mov eax, dword ptr [rdi]";
    vmlx5_guard_load64(at): "mov rax, qword ptr [rdi]";
    vmlx5_guard_store8(at, value): "mov byte ptr [rdi], sil";
    vmlx5_guard_store16(at, value): "mov word ptr [rdi], si";
    vmlx5_guard_store32(at, value): "mov dword ptr [rdi], esi";
    vmlx5_guard_store64(at, value): "mov qword ptr [rdi], rsi";
    vmlx5_guard_swap64(at, value): "mov rax, rsi" "xchg qword ptr [rdi], rax";
    /// Stores `new` if the value is `current`.
    vmlx5_guard_compare_swap64(at, current, new):
        "mov rax, rsi" "lock cmpxchg qword ptr [rdi], rdx";
    vmlx5_guard_fetch_add64(at, value): "mov rax, rsi" "lock xadd qword ptr [rdi], rax";
    /// Writes a byte back unchanged.
    vmlx5_guard_touch(at): "lock or byte ptr [rdi], 0";
}

/// The result of a routine.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Outcome {
    value: u64,
    fault: u64,
}

/// The access faulted.
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
