//! Finds the kernels that a source defines, without a C++ parser.

/// The names that `GDS_KERNEL(NAME, ..)` defines, in order. Comments, string literals and
/// preprocessor lines are skipped.
pub(crate) fn kernels(text: &str) -> Vec<String> {
    const MACRO: &str = concat!("GDS", "_KERNEL"); // no variable of the environment
    let code = without_comments(text);
    let mut names = Vec::new();
    for (at, _) in code.match_indices(MACRO) {
        let line = &code[code[..at].rfind('\n').map_or(0, |end| end + 1)..at];
        let part_of_a_name = code[..at].ends_with(|c: char| c == '_' || c.is_alphanumeric());
        if part_of_a_name || line.trim_start().starts_with('#') {
            continue;
        }
        let Some(arguments) = code[at + MACRO.len()..].trim_start().strip_prefix('(') else {
            continue;
        };
        let name = arguments.split(',').next().unwrap_or_default().trim();
        if !name.is_empty() && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric()) {
            names.push(name.to_owned());
        }
    }
    names
}

/// `text` with comments and the contents of string literals blanked; line breaks stay.
fn without_comments(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['/', '"', '\'']) {
        code.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with('"') {
            quoted(rest)
        } else if rest.starts_with("'\"'") {
            3
        } else {
            code.push_str(&rest[..1]); // a division, or a separator of digits
            rest = &rest[1..];
            continue;
        };
        code.extend(rest[..end].chars().filter(|c| *c == '\n'));
        rest = &rest[end..];
    }
    code + rest
}

/// The length in bytes of the string literal at the start of `text`.
fn quoted(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' | '\n' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::kernels;

    #[test]
    fn every_definition_is_found_once() {
        let text = "
            // GDS_KERNEL(comment, P, p)
            /* GDS_KERNEL(block,
               P, p) */
            const char* s = \"GDS_KERNEL(text, P, p) \\\" GDS_KERNEL(more, P, p)\";
            #define MINE(n) GDS_KERNEL(n, P, p)
            MY_GDS_KERNEL(other, P, p) {}
            char quote = '\"';
            GDS_KERNEL(first, ns::P<1>, p) { int a = p.x / 2; int b = 1'000; }
            GDS_KERNEL (
                second_2, P, p) {}
            GDS_KERNELS(third, P, p) {}";
        assert_eq!(kernels(text), ["first", "second_2"]);
    }

    #[test]
    fn unfinished_text_has_no_kernel() {
        for text in [
            "/* GDS_KERNEL(a, P, p)",
            "\"GDS_KERNEL(a",
            "GDS_KERNEL(",
            " GDS_KERNEL",
        ] {
            assert!(kernels(text).is_empty(), "{text}");
        }
    }
}
