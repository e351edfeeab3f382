//! The structures have the sizes and field offsets of the C headers, and ioctls have the headers'
//! numbers.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use vmlx5_uverbs::abi::{Layout, core, mlx5};

/// The name of a structure in C: ours in lower case, after the header's prefix.
fn structure(prefix: &str, ours: &str) -> String {
    match ours {
        "Handle" => return "ib_uverbs_dealloc_pd".into(),
        "McastAttach" => return "ib_uverbs_attach_mcast".into(),
        "IoctlAttr" => return "ib_uverbs_attr".into(),
        _ => {}
    }
    let mut theirs = prefix.to_owned();
    for c in ours.chars() {
        if c.is_ascii_uppercase() {
            theirs.push('_');
        }
        theirs.push(c.to_ascii_lowercase());
    }
    theirs
}

/// The name of a field in C; `None` for a reserved field, or for one within a field of C.
fn field<'a>(structure: &str, ours: &'a str) -> Option<&'a str> {
    match (structure, ours) {
        ("CreateQp" | "ExCreateQp", "init") | ("Handle", "handle") => Some("pd_handle"),
        ("ExQueryDeviceResp", "odp_general_caps") => Some("odp_caps.general_caps"),
        ("ExQueryDeviceResp", "odp_transport_caps") => Some("odp_caps.per_transport_caps"),
        ("ExQueryDeviceResp", "max_cq_moderation_count") => Some("cq_moderation_caps"),
        ("ExQueryDeviceResp", "max_cq_moderation_period") => None,
        _ => (!ours.contains("reserved")).then_some(ours),
    }
}

#[test]
fn structures_have_the_layout_of_the_headers() {
    let mut source = String::from(
        "#include <stddef.h>\n#include <rdma/ib_user_verbs.h>\n#include <rdma/mlx5-abi.h>\n\
         #include <rdma/rdma_user_ioctl_cmds.h>\n",
    );
    let mut check = |expression: String, value: usize| {
        let _ = writeln!(source, "_Static_assert({expression} == {value}, \"\");");
    };
    let all: [(&str, &[Layout]); 2] = [("ib_uverbs", core::LAYOUTS), ("mlx5_ib", mlx5::LAYOUTS)];
    for (prefix, layouts) in all {
        // The common part of the two commands that create a QP is not a structure in C.
        for (ours, size, fields) in layouts.iter().filter(|l| l.0 != "QpInit") {
            let theirs = structure(prefix, ours);
            check(format!("sizeof(struct {theirs})"), *size);
            for (name, offset) in *fields {
                if let Some(name) = field(ours, name) {
                    check(format!("offsetof(struct {theirs}, {name})"), *offset);
                }
            }
        }
    }
    check(
        "sizeof(struct mlx5_ib_query_device_resp)".into(),
        mlx5::QUERY_DEVICE_RESP,
    );
    compile(&source);
}

#[test]
fn methods_and_attributes_of_ioctls_have_the_headers_numbers() {
    let mut source = String::from(
        "#include <rdma/ib_user_ioctl_cmds.h>\n#include <rdma/mlx5_user_ioctl_cmds.h>\n",
    );
    for (theirs, number) in core::ioctl::NAMES.iter().chain(mlx5::ioctl::NAMES) {
        let _ = writeln!(source, "_Static_assert({theirs} == {number}, \"\");");
    }
    compile(&source);
}

/// Compiles a source without an error.
fn compile(source: &str) {
    let mut compiler = Command::new("cc")
        .args(["-x", "c", "-std=gnu11", "-fsyntax-only", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a C compiler");
    let mut input = compiler.stdin.take().unwrap();
    input.write_all(source.as_bytes()).unwrap();
    drop(input);
    let done = compiler.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{stderr}");
}
