//! The code objects that the repository contains for HIP: whether they have the kernels of the PTX, and whether
//! accesses of system scope have the cache bits, cache instructions and waits that LLVM's memory model of each target
//! asks for (LLVM, User Guide for AMDGPU Backend, Memory Model).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folders of kernels.
const FOLDERS: [&str; 7] = [
    "libgdsync/device",
    "libmp/device",
    "benches/device",
    "examples/device",
    "examples/own-kernel/device",
    "examples/particles/device",
    "examples/halo3d/device",
];

/// The instructions of a target for accesses of system scope. [`LOADS`] and [`STORES`] are waits.
struct Target {
    name: &'static str,
    /// The words at the end of a load and of a store that no cache of the GPU may serve or keep.
    load: &'static str,
    store: &'static str,
    /// In front of a store of a release, and behind a load of an acquire.
    release: &'static [&'static str],
    acquire: &'static [&'static str],
    /// The names of a store of 32 bits and of one of 64 bits.
    stores: [&'static str; 2],
    /// Behind each instruction of the first kind, the next access, wait or cache instruction is the second.
    pairs: &'static [(&'static str, &'static str)],
    /// The wait in front of a barrier.
    barrier: &'static str,
}

const LOADS: &str = "wait for loads";
const STORES: &str = "wait for stores";

/// On the first two, the wait for loads is also the one for stores.
const TARGETS: [Target; 3] = [
    Target {
        name: "gfx90a",
        load: " glc",
        store: "",
        release: &["buffer_wbl2", LOADS],
        acquire: &[LOADS, "buffer_invl2", "buffer_wbinvl1_vol"],
        stores: ["store_dword", "store_dwordx2"],
        pairs: &[
            ("buffer_wbl2", LOADS),
            ("buffer_invl2", "buffer_wbinvl1_vol"),
        ],
        barrier: LOADS,
    },
    Target {
        name: "gfx942",
        load: " sc0 sc1",
        store: " sc0 sc1",
        release: &["buffer_wbl2 sc0 sc1", LOADS],
        acquire: &[LOADS, "buffer_inv sc0 sc1"],
        stores: ["store_dword", "store_dwordx2"],
        pairs: &[("buffer_wbl2", LOADS)],
        barrier: LOADS,
    },
    Target {
        name: "gfx1100",
        load: " glc",
        store: "",
        release: &[LOADS, STORES],
        acquire: &[LOADS, "buffer_gl1_inv", "buffer_gl0_inv"],
        stores: ["store_b32", "store_b64"],
        pairs: &[("buffer_gl1_inv", "buffer_gl0_inv")],
        barrier: STORES,
    },
];

/// The only file with this ending in a folder of the repository.
fn file(folder: &str, ending: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let entries = std::fs::read_dir(root.join(folder)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let found: Vec<_> = paths
        .filter(|path| path.to_str().unwrap().ends_with(ending))
        .collect();
    let [path] = &found[..] else {
        panic!("{folder}: not one file ends in {ending}: {found:?}");
    };
    path.clone()
}

fn code_object(folder: &str, target: &str) -> PathBuf {
    file(&format!("{folder}/hip"), &format!(".{target}.co"))
}

fn output(program: &str, options: &[&str], path: &Path) -> String {
    let output = Command::new(program).args(options).arg(path).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{program} {}", path.display());
    String::from_utf8(output.stdout).unwrap()
}

/// The kernels of PTX, and the sizes of their parameters.
fn kernels_of_ptx(text: &str) -> BTreeMap<String, usize> {
    let entries = text.split(".visible .entry ").skip(1);
    let kernel = |entry: &str| {
        let name = entry.split_once('(').unwrap().0.to_owned();
        let size = entry.split_once('[').unwrap().1.split_once(']').unwrap().0;
        (name, size.parse().unwrap())
    };
    entries.map(kernel).collect()
}

/// The kernels of a code object, and the sizes of their parameters, from its notes.
fn kernels_of_notes(text: &str) -> BTreeMap<String, usize> {
    let mut kernels = BTreeMap::new();
    let (mut size, mut param) = (0, None);
    for line in text.lines() {
        match line.trim().trim_start_matches("- ").split_once(": ") {
            Some((".size", value)) => size = value.trim().parse().unwrap(),
            Some((".value_kind", value)) if value.trim() == "by_value" => {
                assert_eq!(param.replace(size), None, "two parameters: {line}");
            }
            Some((".name", value)) => {
                kernels.insert(value.trim().to_owned(), param.take().unwrap());
            }
            _ => {}
        }
    }
    kernels
}

/// The accesses of memory, cache instructions, waits for memory and barriers of each kernel, in order. Operands are left
/// out.
fn accesses(folder: &str, target: &Target) -> BTreeMap<String, Vec<String>> {
    let options = ["-d", "--no-show-raw-insn"];
    let text = output(
        "llvm-objdump-19",
        &options,
        &code_object(folder, target.name),
    );
    let mut kernels = BTreeMap::new();
    let mut name = String::new();
    for line in text.lines() {
        if let Some(label) = line.strip_suffix(">:") {
            name = label.split_once('<').unwrap().1.to_owned();
        }
        let line = line.split("//").next().unwrap().trim();
        let Some(word) = line.split(' ').next() else {
            continue;
        };
        let access = match word.split('_').next().unwrap() {
            "global" | "flat" => {
                let flags = [" sc0", " sc1", " glc", " dlc", " nt", " slc"];
                let set: String = flags
                    .into_iter()
                    .filter(|flag| line.contains(flag))
                    .collect();
                format!("{}{set}", word.split_once('_').unwrap().1)
            }
            "buffer" if !word.contains("load") && !word.contains("store") => line.to_owned(),
            _ if word == "s_waitcnt" && line.contains("vmcnt(0)") => LOADS.to_owned(),
            _ if word == "s_waitcnt_vscnt" => STORES.to_owned(),
            _ if word == "s_barrier" => word.to_owned(),
            _ => continue,
        };
        let list: &mut Vec<String> = kernels.entry(name.clone()).or_default();
        // Waits in a row have no order, and count once.
        let waits = list
            .iter()
            .rev()
            .take_while(|access| is_wait(access))
            .count();
        let waits = list.split_off(list.len() - waits);
        if !is_wait(&access) {
            list.extend(waits);
            list.push(access);
            continue;
        }
        let is_one = |wait: &&str| access == *wait || waits.iter().any(|other| other == wait);
        list.extend(
            [LOADS, STORES]
                .iter()
                .filter(|wait| is_one(wait))
                .map(|wait| (*wait).to_owned()),
        );
    }
    kernels
}

fn is_wait(access: &str) -> bool {
    [LOADS, STORES].contains(&access)
}

/// Whether the list has these accesses one behind the other.
fn has(list: &[String], patterns: &[&str]) -> bool {
    list.windows(patterns.len())
        .any(|window| window.iter().zip(patterns).all(|(a, b)| a == b))
}

#[test]
#[cfg_attr(not(llvm), ignore = "needs llvm-19")]
fn every_kernel_of_the_ptx_is_in_each_code_object_with_its_parameter() {
    for folder in FOLDERS {
        let ptx = std::fs::read_to_string(file(&format!("{folder}/ptx"), ".ptx")).unwrap();
        let expected = kernels_of_ptx(&ptx);
        assert!(!expected.is_empty(), "{folder}");
        for target in &TARGETS {
            let path = code_object(folder, target.name);
            let notes = output("llvm-readelf-19", &["--notes"], &path);
            assert_eq!(kernels_of_notes(&notes), expected, "{}", path.display());
        }
    }
}

#[test]
#[cfg_attr(not(llvm), ignore = "needs llvm-19")]
fn acquires_and_releases_have_the_cache_instructions_of_the_target() {
    for target in &TARGETS {
        let kernels = accesses("libgdsync/device", target);
        // Loads the doorbell record, stores the next one behind earlier writes, and then, behind a fence, the doorbell.
        let trigger = &kernels["gds_trigger"];
        let load = format!(
            "{}{}",
            target.stores[0].replace("store", "load"),
            target.load
        );
        let [record, doorbell] = target.stores.map(|name| format!("{name}{}", target.store));
        let acquire = [&[load.as_str()], target.acquire].concat();
        assert!(has(trigger, &acquire), "{}: {trigger:#?}", target.name);
        let fence = [target.release, &target.acquire[1..]].concat();
        let ring = [target.release, &[record.as_str()], &fence[..]].concat();
        assert!(has(trigger, &ring), "{}: {trigger:#?}", target.name);
        assert_eq!(trigger.last(), Some(&doorbell), "{}", target.name);
    }
}

#[test]
#[cfg_attr(not(llvm), ignore = "needs llvm-19")]
fn polled_loads_and_shared_stores_pass_the_caches() {
    for target in &TARGETS {
        let of_kind = |list: &[String], name: &str| -> Vec<String> {
            let named = |access: &&String| access.split(' ').next() == Some(name);
            list.iter().filter(named).cloned().collect()
        };
        let [narrow, wide] = target.stores;
        // All that is loaded with one access of this width is polled or, in a program, an operation.
        let program = &accesses("libgdsync/device", target)["gds_program_8"];
        for store in [narrow, wide] {
            let load = store.replace("store", "load");
            let polled = format!("{load}{}", target.load);
            assert!(
                program.contains(&polled),
                "{}: {polled}: {program:#?}",
                target.name
            );
            let stored = format!("{store}{}", target.store);
            let all = of_kind(program, store);
            assert!(
                !all.is_empty() && all.iter().all(|access| *access == stored),
                "{}: {all:?}",
                target.name
            );
        }
        // Names a place in six words of device memory of the sender.
        let name = &accesses("libmp/device", target)["mp_name"];
        let stored = format!("{wide}{}", target.store);
        assert_eq!(
            of_kind(name, wide),
            vec![stored; 6],
            "{}: {name:#?}",
            target.name
        );
    }
}

#[test]
#[cfg_attr(not(llvm), ignore = "needs llvm-19")]
fn cache_instructions_are_complete_and_barriers_wait_for_stores() {
    for target in &TARGETS {
        let (mut pairs, mut barriers) = (vec![0; target.pairs.len()], 0);
        for folder in FOLDERS {
            for (kernel, list) in accesses(folder, target) {
                for (at, access) in list.iter().enumerate() {
                    let what = || format!("{}: {kernel}: {access} at {at}: {list:#?}", target.name);
                    for (count, (first, second)) in pairs.iter_mut().zip(target.pairs) {
                        if access.starts_with(first) {
                            // Waits may also be between two cache instructions.
                            let mut rest = list[at + 1..].iter().map(String::as_str);
                            let next = rest.find(|next| *second == LOADS || !is_wait(next));
                            assert_eq!(next, Some(*second), "{}", what());
                            *count += 1;
                        }
                    }
                    if access == "s_barrier" {
                        assert_eq!(list[at - 1], target.barrier, "{}", what());
                        barriers += 1;
                    }
                }
            }
        }
        assert!(
            pairs.iter().all(|count| *count > 100) && barriers > 100,
            "{}",
            target.name
        );
    }
}
