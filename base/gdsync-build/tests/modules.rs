//! Modules in a linked program: the test compiles them in a process that has the variables of a
//! build script, then compiles a program with rustc that calls their kernels.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use gdsync_build::Kernels;

const FOLDER: &str = "MODULES_TEST_FOLDER";

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {wrong}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The build script: compiles each `NAME.cu` of the folder as the module NAME.
#[test]
fn build_script() {
    let Some(folder) = env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "cu") {
            let name = path.file_stem().unwrap().to_str().unwrap();
            let kernels = Kernels::new(name).source(&path).ptx(&path);
            kernels.compile().unwrap();
        }
    }
}

/// Compiles modules, given as name and source, and calls each kernel once in the order of the
/// modules. Returns the values that the kernels store.
fn stored(test: &str, modules: &[(&str, &str)]) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    for (name, source) in modules {
        let text = format!("#include \"gds_device.hpp\"\nstruct P {{ int* to; }};\n{source}\n");
        fs::write(folder.join(format!("{name}.cu")), text).unwrap();
    }
    let host = run(Command::new("rustc").arg("-vV"));
    let host = host.lines().find_map(|line| line.strip_prefix("host: "));
    run(Command::new(env::current_exe().unwrap())
        .args(["--exact", "build_script"])
        .env(FOLDER, &folder)
        .env("CARGO_MANIFEST_DIR", &folder)
        .env("OUT_DIR", &folder)
        .envs(["HOST", "TARGET"].map(|name| (name, host.unwrap())))
        .envs([("OPT_LEVEL", "2"), ("DEBUG", "false")]));
    let images: String = (modules.iter())
        .map(|(name, _)| format!("include!({:?}), ", folder.join(format!("{name}.rs"))))
        .collect();
    let program = format!(
        "type Kernel = (&'static str, unsafe extern \"C\" fn(*const std::ffi::c_void), \
         unsafe extern \"C\" fn() -> usize);\n\
         type Image = (&'static [Kernel], Option<&'static str>, \
         &'static [(&'static str, &'static [u8])], &'static str);\n\
         fn main() {{ let images: Vec<Image> = vec![{images}]; \
         for (kernels, _, _, _) in images {{ for (name, kernel, size) in kernels {{ \
         let mut at = 0i32; let params = &raw mut at; \
         unsafe {{ assert_eq!(size(), 8); kernel((&raw const params).cast()); }} \
         println!(\"{{name}} {{at}}\"); }} }} }}"
    );
    let main = folder.join("main.rs");
    fs::write(&main, program).unwrap();
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition", "2024", "-o"]);
    rustc
        .arg(folder.join("main"))
        .arg(&main)
        .arg("-L")
        .arg(&folder);
    for (name, _) in modules {
        rustc.arg(format!("-lstatic={name}"));
    }
    run(&mut rustc);
    run(&mut Command::new(folder.join("main")))
}

#[test]
fn kernels_of_one_name_in_two_modules_are_two() {
    let one = "GDS_KERNEL(scale, P, p) { *p.to = 1; }";
    let two = "GDS_KERNEL(scale, P, p) { *p.to = 2; }";
    let stored = stored("one_name", &[("first", one), ("second", two)]);
    assert_eq!(stored, "scale 1\nscale 2\n");
}

#[test]
fn kernel_name_may_be_a_rust_keyword_or_a_generated_name() {
    let source = "GDS_KERNEL(move, P, p) { *p.to = 1; }\n\
                  GDS_KERNEL(self, P, p) { *p.to = 2; }\n\
                  GDS_KERNEL(KERNELS, P, p) { *p.to = 3; }";
    assert_eq!(
        stored("rust names", &[("words", source)]),
        "move 1\nself 2\nKERNELS 3\n"
    );
}
