//! The rank and the meeting place of a process, by the variables of its launcher.

use std::path::Path;
use std::time::Duration;

use mp::bootstrap::env::{Plan, Rendezvous};
use mp::{Error, Kind};

fn plan(vars: &str) -> Result<Plan, Error> {
    let vars = vars
        .split_whitespace()
        .map(|v| v.split_once('=').expect("NAME=value"));
    let vars = vars.collect::<Vec<_>>();
    Plan::from_vars(&|name| {
        let found = vars.iter().find(|(n, _)| *n == name);
        found.map(|(_, value)| value.to_string())
    })
}

#[track_caller]
fn understood(vars: &str) -> Plan {
    plan(vars).unwrap_or_else(|e| panic!("{vars}: {e}"))
}

/// Rank, size and launcher.
fn who(vars: &str) -> (u32, u32, &'static str) {
    let plan = understood(vars);
    (plan.rank, plan.size, plan.launcher)
}

fn here(vars: &str) -> String {
    match understood(vars).rendezvous {
        Rendezvous::OneHost(name) => name,
        other => panic!("{vars}: {other:?}"),
    }
}

fn refused(vars: &str, kind: Kind, words: &[&str]) {
    let e = plan(vars).unwrap_err();
    assert_eq!(e.kind(), kind, "{vars}: {e}");
    for word in words {
        assert!(e.to_string().contains(word), "{vars}: {e}");
    }
}

#[track_caller]
fn invalid(vars: &str, words: &[&str]) {
    refused(vars, Kind::Invalid, words);
}

const SECRET: &str = "MP_SECRET=0123456789abcdef0123";
const EXPLICIT: &str = "MP_RANK=1 MP_SIZE=2";
const TORCHRUN: &str = "RANK=2 WORLD_SIZE=3 LOCAL_RANK=2 LOCAL_WORLD_SIZE=3 \
                        MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none";
const OMPI: &str = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=4 \
                    PMIX_RANK=3 PMIX_NAMESPACE=2093350913";
const PMIX: &str =
    "PMIX_RANK=4 PMIX_NAMESPACE=slurm.pmix.7.0 SLURM_STEP_NUM_TASKS=5 SLURM_STEP_NUM_NODES=1";
const PMI: &str = "PMI_RANK=5 PMI_SIZE=6 PMI_FD=9 MPI_LOCALNRANKS=6";
const SLURM: &str = "SLURM_PROCID=6 SLURM_NTASKS=7 SLURM_JOB_ID=8 SLURM_STEP_ID=0 SLURM_NNODES=1";

#[test]
fn launchers_are_tried_in_order() {
    let all = [EXPLICIT, TORCHRUN, OMPI, PMIX, PMI, SLURM];
    let names = ["MP_RANK", "torchrun", "Open MPI", "PMIx", "PMI", "SLURM"];
    for (i, name) in names.into_iter().enumerate() {
        // Alone, and with the variables of all later launchers.
        for vars in [all[i].to_owned(), all[i..].join(" ")] {
            let rank = i as u32 + 1;
            assert_eq!(who(&(vars + " MP_JOB=x")), (rank, rank + 1, name));
        }
    }
    assert_eq!(who(""), (0, 1, "nothing"));
    assert!(matches!(plan("").unwrap().rendezvous, Rendezvous::Alone));
    // An empty variable counts as unset.
    assert_eq!(who("MP_RANK= RANK="), (0, 1, "nothing"));
    // Any program may set RANK alone; and the batch script of a SLURM job is not one of its tasks.
    assert_eq!(who("RANK=3"), (0, 1, "nothing"));
    let script = "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=8";
    assert_eq!(who(script), (0, 1, "nothing"));
}

#[test]
fn ranks_of_one_host_meet_in_a_directory_named_by_the_launcher() {
    for vars in [TORCHRUN, OMPI, PMIX, PMI, SLURM] {
        let other = vars
            .replace("RANK=", "RANK=0")
            .replace("PROCID=6", "PROCID=0");
        assert_ne!(vars, other);
        assert_eq!(here(vars), here(&other));
    }
    assert_ne!(here(OMPI), here(&OMPI.replace("2093350913", "7")));
    assert_ne!(here(SLURM), here(&SLURM.replace("STEP_ID=0", "STEP_ID=1")));
    let restarted = format!("{TORCHRUN} TORCHELASTIC_RESTART_COUNT=1");
    assert_ne!(here(TORCHRUN), here(&restarted));
    // PMI gives no name: the parent process, which all ranks share, supplies one.
    assert!(here(PMI).contains(&format!(".{}.", std::os::unix::process::parent_id())));
    assert!(here(&format!("{PMI} MP_JOB=mine")).ends_with(".mine"));
    assert!(here(&format!("{EXPLICIT} MP_JOB=mine")).ends_with(".mine"));
    // A master on loopback means one host, for every launcher.
    here("RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1");
    // One rank needs no meeting place.
    for vars in ["MP_RANK=0 MP_SIZE=1", "PMI_RANK=0 PMI_SIZE=1"] {
        assert!(matches!(plan(vars).unwrap().rendezvous, Rendezvous::Alone));
    }
}

#[test]
fn several_hosts_need_a_store() {
    let spread = OMPI.replace("LOCAL_SIZE=4", "LOCAL_SIZE=2");
    for vars in [
        &spread,
        &PMI.replace("RANKS=6", "RANKS=3"),
        &SLURM.replace("NODES=1", "NODES=2"),
        &PMIX.replace("NODES=1", "NODES=2"),
    ] {
        refused(vars, Kind::Unsupported, &["several hosts", "MP_STORE"]);
    }
    refused(EXPLICIT, Kind::Unsupported, &["MP_STORE", "MP_JOB"]);
    let shared = format!("{spread} MP_STORE=file:///shared/job");
    let Rendezvous::Directory(path) = plan(&shared).unwrap().rendezvous else {
        panic!("no directory");
    };
    assert_eq!(path, Path::new("/shared/job"));
}

/// The address, and the address on which rank 0 listens.
fn store(vars: &str) -> (String, Option<String>) {
    match understood(vars).rendezvous {
        Rendezvous::Store { address, bind, .. } => (address, bind.map(|bind| bind.to_string())),
        other => panic!("{vars}: {other:?}"),
    }
}

#[test]
fn store_listens_on_loopback_by_default() {
    let tcp = |at: &str, more: &str| format!("{EXPLICIT} {SECRET} MP_STORE=tcp://{at} {more}");
    for (at, more, address, bind) in [
        ("127.0.0.1:7000", "", "127.0.0.1:7000", "127.0.0.1:7000"),
        ("[::1]:7000/", "MP_BIND=::", "[::1]:7000", "[::]:7000"),
        (
            "node7:7000",
            "MP_BIND=0.0.0.0",
            "node7:7000",
            "0.0.0.0:7000",
        ),
    ] {
        let at_store = (address.to_owned(), Some(bind.to_owned()));
        assert_eq!(store(&tcp(at, more)), at_store);
    }
    // Another process hosts the store.
    assert_eq!(store(&tcp("node7:7000", "MP_SERVE=0")).1, None);
    // Rank 0 would listen on loopback, where other hosts cannot connect; other ranks do not need
    // the address.
    let zero = |text: String| text.replace("MP_RANK=1", "MP_RANK=0");
    invalid(&zero(tcp("node7:7000", "")), &["MP_BIND"]);
    store(&tcp("node7:7000", ""));
    store(&zero(tcp("localhost:7000", "")));

    let spread = TORCHRUN.replace("127.0.0.1", "10.0.0.7");
    let spread = spread.replace("LOCAL_WORLD_SIZE=3", "LOCAL_WORLD_SIZE=1");
    invalid(&spread, &["MP_SECRET"]);
    // Without the number of ranks per host, the master's address shows whether all ranks share a
    // host.
    let unsaid = |vars: &str| vars.replace("LOCAL_WORLD_SIZE", "UNKNOWN");
    here(&unsaid(TORCHRUN));
    invalid(&unsaid(&spread), &["MP_SECRET"]);
    // Torch's own store uses MASTER_PORT itself.
    assert_eq!(store(&format!("{spread} {SECRET}")).0, "10.0.0.7:29501");
    let v6 = spread.replace("10.0.0.7", "fd00::7");
    assert_eq!(store(&format!("{v6} {SECRET}")).0, "[fd00::7]:29501");
    for port in ["65535", "4294967295"] {
        let last = spread.replace("29500", port);
        invalid(&format!("{last} {SECRET}"), &["MASTER_PORT", "65535"]);
    }
}

#[test]
fn error_names_the_invalid_variable() {
    invalid("MP_RANK=x MP_SIZE=2", &["MP_RANK=\"x\"", "number"]);
    invalid("MP_RANK=1", &["MP_RANK is set", "MP_SIZE"]);
    invalid("MP_SIZE=2", &["MP_SIZE is set", "MP_RANK"]);
    invalid("MP_RANK=2 MP_SIZE=2", &["rank 2 of 2"]);
    invalid("MP_RANK=0 MP_SIZE=0", &["rank 0 of 0"]);
    invalid("PMI_RANK=0", &["PMI_SIZE"]);
    invalid("PMIX_RANK=0", &["MP_SIZE"]);
    invalid("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=-2", &["-2"]);
    let with = |more: &str| format!("{EXPLICIT} {SECRET} {more}");
    let stores = "http://x tcp://x tcp://:5 tcp://x:y tcp://x:70000 file://x";
    for store in stores.split(' ') {
        invalid(&with(&format!("MP_STORE={store}")), &["MP_STORE", store]);
    }
    let tcp = |more: &str| with(&format!("MP_STORE=tcp://127.0.0.1:7000 {more}"));
    invalid(&tcp("MP_BIND=eth0"), &["MP_BIND", "eth0"]);
    invalid(&tcp("MP_SERVE=yes"), &["MP_SERVE", "yes"]);
    let short = "MP_RANK=0 MP_SIZE=2 MP_STORE=tcp://localhost:1 MP_SECRET=short";
    invalid(short, &["(MP_SECRET) is too short", "16"]);
    let words = ["MP_START_TIMEOUT", "seconds"];
    invalid(&tcp("MP_START_TIMEOUT=soon"), &words);
    invalid(&tcp("MP_START_TIMEOUT=0"), &["MP_START_TIMEOUT"]);
    let limit = plan(&tcp("MP_START_TIMEOUT=2.5")).unwrap().limit;
    assert_eq!(limit, Duration::from_millis(2500));
}

#[test]
fn secret_is_not_printed() {
    let plan = plan(&format!("{EXPLICIT} {SECRET} MP_STORE=tcp://[::1]:7000"));
    let shown = format!("{:?}", plan.unwrap());
    assert!(!shown.contains("0123456789"), "{shown}");
}
