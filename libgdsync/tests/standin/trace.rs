//! The calls of the driver table, in the format of the golden traces.

use std::collections::HashMap;
use std::fmt::Write as _;

use gdsync::Gpu;
use gdsync::gpu::Stream;

use crate::golden_rig::{Watch, renumber};
use crate::standin::{Control, thread};

/// Takes traces from the calls of the driver table. The tracer only supplies the names of
/// addresses. The test checks that every name is one address, and every address has one name.
pub struct Calls {
    control: Control,
    /// Start addresses of named memory, and the reverse.
    places: HashMap<String, u64>,
    names: HashMap<u64, String>,
}

/// One call that submits work to a stream.
struct Submission {
    stream: u64,
    /// The line of the call, and its operations.
    kernel: bool,
    ops: Vec<Op>,
}

/// One operation: its line, with `@` for each address, and these addresses.
struct Op {
    line: String,
    at: Vec<u64>,
}

impl Calls {
    /// Takes them from this process's stand-in.
    pub fn new(control: Control) -> Calls {
        Calls {
            control,
            places: HashMap::new(),
            names: HashMap::new(),
        }
    }

    /// Checks that `at` is the address that the tracer calls `place`; returns this name.
    fn place(&mut self, at: u64, place: &str) -> String {
        if let Some(hex) = place.strip_prefix("0x") {
            assert_eq!(u64::from_str_radix(hex, 16), Ok(at), "{place}");
            return place.to_owned();
        }
        let (name, offset) = match place.split_once("+0x") {
            Some((name, offset)) => (name, u64::from_str_radix(offset, 16).unwrap()),
            None => (place, 0),
        };
        let base = at - offset;
        let known = *self.places.entry(name.to_owned()).or_insert(base);
        assert_eq!(known, base, "{name} is in two places");
        let called = self.names.entry(base).or_insert_with(|| name.to_owned());
        assert_eq!(called, name, "{base:#x} has two names");
        place.to_owned()
    }
}

impl Watch for Calls {
    fn start(&mut self, gpu: &Gpu) {
        gpu.capture_trace();
        self.control.record(true);
    }

    fn take(&mut self, gpu: &Gpu, streams: &[Stream; 2]) -> Vec<String> {
        let mut calls = submissions(&self.control.calls()).into_iter();
        let mut named = gpu.take_trace().into_iter();
        let mut lines = Vec::new();
        while let Some(traced) = named.next() {
            let mut call = calls
                .next()
                .expect("traced, but never handed to the driver");
            let (_, count) = traced.rsplit_once(", ").unwrap_or(("", &traced));
            let count = count.trim_end_matches(" operations").rsplit(' ').next();
            let count: usize = count.unwrap().parse().expect(&traced);
            // HIP gets a call for each operation.
            while call.ops.len() < count {
                let more = calls.next().expect("an operation is missing");
                assert!(more.stream == call.stream && !more.kernel && !call.kernel);
                call.ops.extend(more.ops);
            }
            let raw = |s: &Stream| s.as_cuda().or(s.as_hip()).unwrap() as u64;
            let stream = streams.iter().position(|s| raw(s) == call.stream);
            let stream = stream.expect("a stream of the test's");
            let kernel = if call.kernel { "kernel, " } else { "" };
            let head = format!("stream {stream}: {kernel}{} operations", call.ops.len());
            assert_eq!(renumber(&traced, streams), head);
            lines.push(head);
            for op in call.ops {
                let traced = named.next().expect("an operation that is not traced");
                let traced: Vec<&str> = traced.split(' ').collect();
                let mut at = op.at.into_iter();
                // Where the line has an address, the traced one has its name.
                let words = op.line.split(' ').enumerate().map(|(i, word)| match word {
                    "@" => self.place(at.next().unwrap(), traced[i]),
                    word => word.to_owned(),
                });
                lines.push(words.collect::<Vec<_>>().join(" "));
            }
        }
        assert_eq!(
            calls.next().map(|call| call.stream),
            None,
            "a call that is not traced"
        );
        lines
    }

    /// A driver fences every write of a memory operation: fenced and unfenced writes look the same. No
    /// other difference is allowed.
    fn expected(&self, golden: String) -> String {
        let mut text = String::new();
        for line in golden.lines() {
            let loose = line.starts_with("  write") && !line.ends_with(" fenced");
            writeln!(text, "{line}{}", if loose { " fenced" } else { "" }).unwrap();
        }
        text
    }
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).unwrap()
}

/// The calls of this thread that submit work to a stream.
fn submissions(calls: &str) -> Vec<Submission> {
    let own = thread().to_string();
    let mut found: Vec<Submission> = Vec::new();
    let mut inside = false;
    for line in calls.lines() {
        if let Some(carried) = line.strip_prefix("  ") {
            if inside {
                let last = found.last_mut().unwrap();
                match carried.strip_prefix("kernel ") {
                    Some(kernel) => last.ops = program(kernel),
                    None => last.ops.push(memory_operation(carried)),
                }
            }
            continue;
        }
        let words: Vec<&str> = line.split(' ').collect();
        assert!(
            !line.contains(" = ") || words[1].ends_with("StreamQuery"),
            "{line}"
        );
        let stream = match words[1] {
            "cuStreamBatchMemOp_v2" => Some(words[2]),
            "cuLaunchKernel" | "hipModuleLaunchKernel" => Some(words[10]),
            name if name.starts_with("hipStreamWaitValue") => Some(words[2]),
            name if name.starts_with("hipStreamWriteValue") => Some(words[2]),
            _ => None,
        };
        inside = words[0] == own && stream.is_some();
        if let (true, Some(stream)) = (inside, stream) {
            found.push(Submission {
                stream: hex(stream),
                kernel: words[1].ends_with("LaunchKernel"),
                ops: Vec::new(),
            });
        }
    }
    found
}

/// `write32 ADDRESS VALUE flags FLAGS`, and so on.
fn memory_operation(line: &str) -> Op {
    let words: Vec<&str> = line.split(' ').collect();
    if let ["flush", "flags", flags] = words[..] {
        assert_eq!(hex(flags), 0);
        return Op {
            line: "flush".to_owned(),
            at: Vec::new(),
        };
    }
    let (words, mask) = match words[..] {
        [.., "mask", mask] => (&words[..words.len() - 2], Some(hex(mask))),
        _ => (&words[..], None),
    };
    let [name, at, value, "flags", flags] = *words else {
        panic!("{line}");
    };
    let (value, flags) = (hex(value), hex(flags));
    let value = match name.ends_with("64") {
        true => format!("{value:#018x}"),
        false => format!("{value:#010x}"),
    };
    let after = if name.starts_with("write") {
        assert_eq!(flags, 0, "a write that is not fenced");
        format!("= {value} fenced")
    } else {
        let condition = ["Geq", "Eq", "And", "Nor"][flags as usize & 3];
        let flush = if flags >> 30 & 1 == 1 { " flush" } else { "" };
        assert_eq!(flags & !(1 << 30 | 3), 0);
        let mask = match (mask, name.ends_with("64")) {
            (None, _) | (Some(u64::MAX), true) | (Some(0xffff_ffff), false) => String::new(),
            (Some(mask), true) => format!(" mask {mask:#018x}"),
            (Some(mask), false) => format!(" mask {mask:#010x}"),
        };
        format!("{condition} {value}{mask}{flush}")
    };
    Op {
        line: format!("{name} @ {after}"),
        at: vec![hex(at)],
    }
}

/// A launch of a program kernel: `gds_program PARAMETERS`, in the layout of `gds_program.hpp`.
fn program(line: &str) -> Vec<Op> {
    let (name, params) = line.split_once(' ').unwrap();
    assert!(name.starts_with("gds_program"), "{name}");
    let bytes: Vec<u8> = (0..params.len() / 2)
        .map(|i| u8::from_str_radix(&params[2 * i..2 * i + 2], 16).unwrap())
        .collect();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let count = word(0) as u32 as usize;
    (0..count)
        .map(|i| {
            let at = 8 + 32 * i;
            let (code, phase) = (bytes[at], bytes[at + 2]);
            let more = (word(at) >> 32) as u32;
            let [place, value, extra] = [8, 16, 24].map(|field| word(at + field));
            let simple = |name: &str| (format!("{name} @ {value:#x} {extra:#x}"), vec![place]);
            let (line, at) = match code {
                1 => simple("write32"),
                2 => simple("write64"),
                3 => simple("wait32"),
                4 => {
                    let line = format!("wait64 @ {value:#x} {extra:#x} {more}");
                    (line, vec![place])
                }
                5 => simple("wait-entry"),
                6 => {
                    let line = format!("ring @ = {more:#010x}, @ = {value:#018x}");
                    (line, vec![place, extra])
                }
                _ => panic!("an operation {code}"),
            };
            Op {
                line: format!("phase {phase}: {line}"),
                at,
            }
        })
        .collect()
}
