//! The text of the generated sources.
//!
//! A C library may return numbers that a closed Rust enum does not list, and a value with an
//! unlisted number is undefined behaviour. Results are therefore returned as integers. An enum
//! behind a pointer is checked as a number before Rust code can read it. Functions whose enums
//! cannot be checked are left out.

use std::fmt::Write;

use crate::items::{Function, Items};

/// Left out: they return structures or call-back arguments that contain enums, and cust 0.3.2 does
/// not use them.
const OMITTED: [&str; 8] = [
    "cuCtxGetExecAffinity",
    "cuGraphKernelNodeGetAttribute",
    "cuGraphMemAllocNodeGetParams",
    "cuGraphMemcpyNodeGetParams",
    "cuMemGetAllocationPropertiesFromHandle",
    "cuStreamAddCallback",
    "cuStreamGetAttribute",
    "cuTexObjectGetTextureDesc",
];

/// Written by hand next to the generated sources, for the same reason or for a better text.
const BY_HAND: [&str; 7] = [
    "cuArray3DGetDescriptor_v2",
    "cuArrayGetDescriptor_v2",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuSurfObjectGetResourceDesc",
    "cuTexObjectGetResourceDesc",
    "cuTexObjectGetResourceViewDesc",
];

/// Pointers to structures with enums that the driver only reads (in cuGraphAddMemAllocNode it also
/// writes an address, but no enum).
const READ: [(&str, &str); 4] = [
    ("cuCtxCreate_v3", "paramsArray"),
    ("cuMemMapArrayAsync", "mapInfoList"),
    ("cuGraphAddMemAllocNode", "nodeParams"),
    ("cuMemPoolGetAccess", "location"),
];

/// Pointers to enums that the driver only reads.
const READ_ENUMS: [&str; 2] = ["options", "attributes"];

fn head(what: &str) -> String {
    format!(
        "//! {what}\n//!\n\
         //! Made by `cust-patch/generate` from cust_raw 0.11.3 (bindgen's output over CUDA 11.4's\n\
         //! cuda.h), which is licensed MIT OR Apache-2.0: Copyright (c) 2021 Riccardo D'Ambrosio.\n\
         //! The notices are in `cust-patch/NOTICE`. Do not edit; run the generator.\n\n"
    )
}

/// Types and constants, assertions of the layouts, and the numbers that each enum lists.
pub fn types(items: &Items) -> Result<String, String> {
    let mut out = head("The driver API's types and constants.");
    for text in items
        .kept
        .iter()
        .filter(|text| !zeroed_unlisted(items, text))
    {
        out.push_str(text);
    }
    out.push_str("layouts! {\n");
    for (name, size, align) in &items.layouts {
        writeln!(out, "    {name}: {size}, {align};").map_err(|e| e.to_string())?;
    }
    out.push_str("}\nlisted! {\n");
    for (name, e) in &items.enums {
        let numbers: Vec<String> = e.numbers.iter().map(i64::to_string).collect();
        writeln!(out, "    {name}: {};", numbers.join(" ")).map_err(|e| e.to_string())?;
    }
    out.push_str("}\n");
    Ok(out)
}

/// Whether `text` is a Default of all zeros for a structure with an enum that lists no 0.
fn zeroed_unlisted(items: &Items, text: &str) -> bool {
    let Some(rest) = text.strip_prefix("impl Default for ") else {
        return false;
    };
    let name = rest.split(' ').next().unwrap_or_default();
    let enums = items.enums_in(name);
    enums.iter().any(|e| !items.enums[*e].numbers.contains(&0))
}

/// The functions, each with the pointer arguments through which it returns an enum.
pub fn functions(items: &Items) -> Result<String, String> {
    let mut out = head("The driver API's functions, each found in libcuda on its first call.");
    out.push_str("use super::types::*;\n\ndriver! {\n");
    for function in &items.functions {
        let name = function.name.as_str();
        if OMITTED.contains(&name) || BY_HAND.contains(&name) {
            continue;
        }
        let handed_out = handed_out(items, function)?;
        if !handed_out.is_empty() {
            writeln!(out, "    #[listed({})]", handed_out.join(", ")).map_err(|e| e.to_string())?;
        }
        writeln!(out, "    fn {name}(").map_err(|e| e.to_string())?;
        for (arg, ty) in &function.args {
            writeln!(out, "        {arg}: {ty},").map_err(|e| e.to_string())?;
        }
        out.push_str("    );\n");
    }
    out.push_str("}\n");
    Ok(out)
}

/// The arguments through which `function` returns an enum.
fn handed_out<'a>(items: &Items, function: &'a Function) -> Result<Vec<&'a str>, String> {
    let mut found = Vec::new();
    for (arg, ty) in &function.args {
        let Some(pointee) = ty.strip_prefix("*mut ") else {
            continue;
        };
        let known = READ.contains(&(function.name.as_str(), arg.as_str()));
        if items.as_enum(pointee).is_some() {
            if !READ_ENUMS.contains(&arg.as_str()) {
                found.push(arg.as_str());
            }
        } else if !known && !items.enums_in(pointee).is_empty() {
            return Err(format!(
                "{}: {arg}: it is not known which enums it may contain",
                function.name
            ));
        }
    }
    if function.args.iter().any(|(_, ty)| ty == "CUstreamCallback") {
        return Err(format!(
            "{}: passes a CUresult to a callback",
            function.name
        ));
    }
    Ok(found)
}
