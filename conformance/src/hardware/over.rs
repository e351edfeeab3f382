//! Starts this program once for each kind of trials, with messages by the NIC. `conformance --all` runs over the NIC that the
//! environment names. `conformance --over PROVIDER` runs over the named provider; if the provider
//! needs a NIC of verbs, the trials use virtual NICs of a separate fabric.
//!
//! `libvmlx5.so`, which must be beside the program, provides the virtual NICs; libibverbs and
//! libmlx5 are those of the machine.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use gdsync::rdma::Provider;

use super::child;
use crate::rig::verdict::{Verdict, text};

const HELP: &str = "\
usage: conformance --all [--few]
       conformance --over PROVIDER [OPTIONS] [gdsync | matrix | mp [ARGUMENTS]]

  --all          runs gdsync, matrix and mp one after the other, over the NIC that GDS_PROVIDER
                 and GDS_NIC name, with MP_PATH=nic
  PROVIDER       emulated, mlx5, verbs or tcp; mlx5 and verbs run on libvmlx5.so, which must be
                 beside this program
  --link LINK    link of the virtual NICs, for mlx5 and verbs: ib or roce (default: ib)
  --faults WORDS faults of the virtual NICs, in the words of VMLX5_FAULTS (default: none); not
                 for tcp
  --few          each setting of a matrix once, instead of each pair of settings

Without a name, all three kinds of trials run.

examples:
  conformance --all --few
  conformance --over verbs --link roce mp
";

/// The kinds of trials.
const KINDS: [&str; 3] = ["gdsync", "matrix", "mp"];

/// Number of virtual NICs.
const NICS: &str = "2";

/// The parsed command line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Parsed {
    /// [`Provider::Auto`]: the provider and all settings of the environment.
    provider: Provider,
    link: String,
    faults: Option<String>,
    kinds: Vec<&'static str>,
    arguments: Vec<String>,
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<Parsed> {
    let provider = match words.next()?.as_str() {
        "--all" => Provider::Auto,
        "--over" => {
            let named = words.next()?;
            let all = [
                Provider::Emulated,
                Provider::Mlx5,
                Provider::Verbs,
                Provider::Tcp,
            ];
            all.into_iter().find(|p| p.to_string() == named)?
        }
        _ => return None,
    };
    let mut parsed = Parsed {
        provider,
        link: "ib".to_owned(),
        faults: None,
        kinds: KINDS.to_vec(),
        arguments: Vec::new(),
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--few" => parsed.arguments.push(word),
            _ if provider == Provider::Auto => return None,
            // Only virtual NICs of verbs have a choice of links, and only virtual NICs have faults.
            "--link" if !on_verbs(provider) => return None,
            "--faults" if provider == Provider::Tcp => return None,
            "--link" => parsed.link = words.next().filter(|l| l == "ib" || l == "roce")?,
            "--faults" => parsed.faults = Some(words.next()?),
            kind => {
                parsed.kinds = vec![KINDS.into_iter().find(|k| *k == kind)?];
                parsed.arguments.extend(words.by_ref());
            }
        }
    }
    Some(parsed)
}

/// Whether a provider needs a NIC of verbs.
fn on_verbs(provider: Provider) -> bool {
    matches!(provider, Provider::Mlx5 | Provider::Verbs)
}

/// Whether a command line that begins with this word is for [`command`].
pub fn is_meant(word: &str) -> bool {
    word == "--over" || word == "--all"
}

/// The commands `conformance --over` and `conformance --all`, with all their words.
pub fn command(words: impl Iterator<Item = String>) -> ! {
    let Some(parsed) = parse(words) else {
        eprint!("{HELP}");
        std::process::exit(2);
    };
    match run(&parsed) {
        Ok(code) => std::process::exit(code),
        Err(failed) => {
            eprintln!("{}", text(&failed));
            std::process::exit(2)
        }
    }
}

fn run(parsed: &Parsed) -> Verdict<i32> {
    let mut worst = 0;
    for kind in &parsed.kinds {
        let mut command = process(parsed, kind)?;
        if parsed.kinds.len() == 1 {
            // exec: the parent waits for the trials themselves, without a process in between.
            return Err(command.exec().into());
        }
        child::tie(&mut command);
        let status = command.status()?;
        worst = worst.max(status.code().unwrap_or(101));
    }
    Ok(worst)
}

fn process(parsed: &Parsed, kind: &str) -> Verdict<Command> {
    let own = std::env::current_exe()?;
    let mut command = Command::new(&own);
    if kind != KINDS[0] {
        command.arg(kind);
    }
    command.args(&parsed.arguments).env("MP_PATH", "nic");
    if parsed.provider == Provider::Auto {
        return Ok(command);
    }
    command
        .env_remove("GDS_NIC")
        .env_remove("GDS_GID_INDEX")
        .env("GDS_PROVIDER", parsed.provider.to_string());
    command.env_remove("GDS_FAULTS").env_remove("VMLX5_FAULTS");
    if let Some(faults) = &parsed.faults {
        let name = match parsed.provider {
            Provider::Emulated => "GDS_FAULTS",
            _ => "VMLX5_FAULTS",
        };
        command.env(name, faults);
    }
    if !on_verbs(parsed.provider) {
        return Ok(command);
    }
    let library = own.with_file_name("libvmlx5.so");
    if !library.exists() {
        let build = "cargo build -p vmlx5-preload -p vmlx5-cli";
        return Err(format!("no {}: it is built by {build}", library.display()).into());
    }
    let fabric = format!("conformance-{}-{kind}", std::process::id());
    command
        .env("LD_PRELOAD", preloaded(library))
        .env("VMLX5_FABRIC", fabric)
        .env("VMLX5_LINK", &parsed.link)
        .env("VMLX5_DEVICES", NICS);
    Ok(command)
}

/// The value of LD_PRELOAD: the library, then the libraries of the environment.
fn preloaded(library: PathBuf) -> OsString {
    let mut all = library.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &str) -> Option<Parsed> {
        parse(words.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn command_line_of_a_provider_is_parsed() {
        let all = parsed("--over verbs --link roce --faults loss=0.01").unwrap();
        assert_eq!(all.provider, Provider::Verbs);
        assert_eq!((all.link.as_str(), &all.kinds[..]), ("roce", &KINDS[..]));
        assert_eq!(all.faults.as_deref(), Some("loss=0.01"));
        let one = parsed("--over mlx5 mp --gpu soft --link ib").unwrap();
        assert_eq!((one.link.as_str(), &one.kinds[..]), ("ib", &["mp"][..]));
        assert_eq!(one.arguments, ["--gpu", "soft", "--link", "ib"]);
        let here = parsed("--all --few").unwrap();
        assert_eq!((here.provider, here.kinds.len()), (Provider::Auto, 3));
        assert_eq!(here.arguments, ["--few"]);
        for wrong in ["", "auto", "verbs --link", "verbs --link x", "verbs some"] {
            assert_eq!(parsed(&format!("--over {wrong}")), None, "{wrong}");
        }
        assert_eq!(parsed("--all --link ib"), None);
        assert!(parsed("--over emulated --faults ooo=0.5").is_some());
        // An option that would have no effect is refused.
        assert_eq!(parsed("--over emulated --link roce"), None);
        assert!(parsed("--over emulated matrix").is_some());
        let tcp = parsed("--over tcp gdsync").unwrap();
        assert_eq!(tcp.provider, Provider::Tcp);
        assert_eq!(parsed("--over tcp --link ib"), None);
        assert_eq!(parsed("--over tcp --faults loss=0.01"), None);
    }
}
