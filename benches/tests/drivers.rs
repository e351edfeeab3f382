//! Every command in its short form on GPUs with a driver: always on stand-ins for those of NVIDIA and
//! AMD, and on the first GPU of each if there is one. If there is none, the test reports that, and
//! `GDS_REQUIRE` turns it into a failure.

mod shared;
#[path = "../../libgdsync/tests/standin/mod.rs"]
mod standin;

use std::ffi::OsString;

use libtest_mimic::{Arguments, Failed, Trial};

use shared::short::{On, SHORT, WRONG, play, play_wrong};
use standin::{HIP_7, HIP_LIBRARY, LIBRARY, Variant};

fn main() {
    let mut arguments = Arguments::from_args();
    // Each trial starts processes that need the processors.
    arguments.test_threads = Some(1);
    let library = |variant| standin::build_with(&variant, &["../benches/device"]).into();
    let cuda = vec![(LIBRARY, library(Variant::default()))];
    let hip = vec![
        (HIP_LIBRARY, library(Variant::HIP7)),
        (HIP_7.0, HIP_7.1.into()),
        ("GPU_MAX_HW_QUEUES", "16".into()),
    ];
    let mut trials = trials_on("stand-in", "cuda", cuda);
    trials.extend(trials_on("stand-in", "hip", hip));
    for (runtime, gpu) in [("cuda", gdsync::Gpu::cuda(0)), ("hip", gdsync::Gpu::hip(0))] {
        match gpu {
            Ok(_) => trials.extend(trials_on("GPU", runtime, vec![])),
            Err(e) => {
                let what = format!("{runtime} (needs {runtime}: {e})");
                let absent = e.kind() == gdsync::Kind::Absent && !is_required(runtime);
                let trial = Trial::test(what, move || Err(e.to_string().into()));
                trials.push(trial.with_ignored_flag(absent));
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit()
}

fn is_required(what: &str) -> bool {
    let required = std::env::var("GDS_REQUIRE").unwrap_or_default();
    required.split(',').any(|word| word.trim() == what)
}

fn trials_on(name: &str, runtime: &'static str, env: Vec<(&'static str, OsString)>) -> Vec<Trial> {
    let on = On {
        gpu: runtime,
        runtime,
        env,
    };
    let name = format!("{runtime} {name}");
    let trial = |title: String, run: Box<dyn Fn(&On) + Send>| {
        let on = on.clone();
        Trial::test(title, move || {
            run(&on);
            Ok::<(), Failed>(())
        })
    };
    let short = SHORT.iter().map(|short| {
        let title = format!("{name}: {}", short.0);
        trial(title, Box::new(move |on| play(short, on)))
    });
    let wrong = WRONG.into_iter().map(|wrong| {
        let title = format!(
            "{name}: {} with an injected error",
            wrong.0.split(' ').next().unwrap()
        );
        trial(title, Box::new(move |on| play_wrong(wrong, on)))
    });
    short.chain(wrong).collect()
}
