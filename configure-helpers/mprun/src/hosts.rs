//! The file of hosts.

use anyhow::{Context, bail, ensure};

/// A host and the number of its ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name; `None`: this host, without ssh.
    pub name: Option<String>,
    /// The number of its ranks.
    pub ranks: u32,
}

impl Host {
    /// This host.
    pub fn here(ranks: u32) -> Host {
        Host { name: None, ranks }
    }
}

/// Parses a file of hosts: each line is `NAME`, `NAME N` or `NAME slots=N`; `#` begins a comment.
///
/// # Errors
/// A line has another form (the error gives its number), or the file names no host.
pub fn parse(text: &str) -> anyhow::Result<Vec<Host>> {
    let mut hosts = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        hosts.extend(host(line).with_context(|| format!("line {}", i + 1))?);
    }
    ensure!(!hosts.is_empty(), "it names no host; write one host a line");
    Ok(hosts)
}

fn host(line: &str) -> anyhow::Result<Option<Host>> {
    let words = line.split_whitespace().collect::<Vec<_>>();
    let (name, ranks) = match *words {
        [] => return Ok(None),
        [name] => (name, 1),
        [name, count] => {
            let count = count.strip_prefix("slots=").unwrap_or(count);
            let count = count.parse().ok().filter(|n| *n > 0);
            (
                name,
                count.context("the number of ranks is not a number above 0")?,
            )
        }
        _ => bail!("the line has more than a name and a number of ranks"),
    };
    // A name that begins with `-` would become an option of ssh.
    ensure!(!name.starts_with('-'), "{name:?} is not the name of a host");
    let name = (name != "localhost").then(|| name.to_string());
    Ok(Some(Host { name, ranks }))
}

/// The first `n` slots of these hosts; all slots if `n` is `None`.
///
/// # Errors
/// The hosts have fewer than `n` slots.
pub fn cut(hosts: Vec<Host>, n: Option<u32>) -> anyhow::Result<Vec<Host>> {
    let Some(n) = n else {
        return Ok(hosts);
    };
    let mut left = n;
    let mut cut = Vec::new();
    for host in hosts {
        let ranks = host.ranks.min(left);
        left -= ranks;
        if ranks > 0 {
            cut.push(Host { ranks, ..host });
        }
    }
    ensure!(
        left == 0,
        "the hosts have {} slots for {n} ranks; add slots, or use a smaller -n",
        n - left
    );
    Ok(cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, ranks: u32) -> Host {
        Host {
            name: Some(name.into()),
            ranks,
        }
    }

    #[test]
    fn invalid_line_is_an_error_with_its_number() {
        let hosts = parse("# all\na\n  b 2 # two\n\nlocalhost slots=3\na 1").unwrap();
        let all = [named("a", 1), named("b", 2), Host::here(3), named("a", 1)];
        assert_eq!(hosts, all);
        for (text, word) in [
            ("a\nb x", "line 2"),
            ("a 0", "line 1"),
            ("a slots=-1", "line 1"),
            ("a b c", "line 1"),
            ("-oProxyCommand=x", "line 1"),
            ("# nothing", "no host"),
        ] {
            let e = parse(text).unwrap_err();
            assert!(format!("{e:#}").contains(word), "{text}: {e:#}");
        }
    }

    #[test]
    fn ranks_fill_the_slots_in_order() {
        let hosts = parse("a 2\nb 2").unwrap();
        assert_eq!(cut(hosts.clone(), None).unwrap(), hosts);
        assert_eq!(cut(hosts.clone(), Some(2)).unwrap(), [named("a", 2)]);
        let three = [named("a", 2), named("b", 1)];
        assert_eq!(cut(hosts.clone(), Some(3)).unwrap(), three);
        let e = cut(hosts, Some(5)).unwrap_err();
        assert!(e.to_string().contains("4 slots for 5 ranks"), "{e}");
    }
}
