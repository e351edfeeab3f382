//! The environment variables from which a process reads its rank in the job.

/// Reads a variable of the environment.
pub type Get<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Names of variables; the first one that is set counts.
pub type Names = &'static [&'static str];

/// A launcher, described by the variables that it sets.
pub struct Launcher {
    /// The launcher's name; `MP_RANK` for `mprun` and for every other launcher that sets this
    /// variable.
    pub name: &'static str,
    /// The rank.
    pub rank: &'static str,
    /// Variables that must be set as well. Other programs set `RANK` alone, and outside a step
    /// SLURM numbers the script of the job as if it were the first task.
    pub with: Names,
    /// The number of ranks of the job. PMIx provides it only through its library.
    pub size: Names,
    /// The local rank and the number of ranks on this host; SLURM has the latter as a list.
    pub local: Option<(&'static str, &'static str)>,
    /// The number of ranks of the job on this host.
    pub here: Names,
    /// The number of hosts of the job.
    pub hosts: Names,
    /// The parts of the job's name.
    pub job: &'static [Names],
}

/// The launchers, in the order of the search. PMI is that of Hydra (Intel MPI, MPICH).
#[rustfmt::skip]
pub const LAUNCHERS: [Launcher; 6] = [
    Launcher { name: "MP_RANK", rank: "MP_RANK", with: &["MP_RANK"], size: &["MP_SIZE"],
        local: Some(("MP_LOCAL_RANK", "MP_LOCAL_SIZE")), here: &[], hosts: &[], job: &[] },
    Launcher { name: "torchrun", rank: "RANK", with: &["WORLD_SIZE"], size: &["WORLD_SIZE"],
        local: Some(("LOCAL_RANK", "LOCAL_WORLD_SIZE")), here: &["LOCAL_WORLD_SIZE"], hosts: &[],
        job: &[&["TORCHELASTIC_RUN_ID"], &["MASTER_PORT"], &["TORCHELASTIC_RESTART_COUNT"]] },
    Launcher { name: "Open MPI", rank: "OMPI_COMM_WORLD_RANK", with: &["OMPI_COMM_WORLD_RANK"],
        size: &["OMPI_COMM_WORLD_SIZE"],
        local: Some(("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")),
        here: &["OMPI_COMM_WORLD_LOCAL_SIZE"], hosts: &[],
        job: &[&["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"]] },
    Launcher { name: "PMIx", rank: "PMIX_RANK", with: &["PMIX_RANK"],
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "MP_SIZE"], local: None, here: &[],
        hosts: &["SLURM_STEP_NUM_NODES", "SLURM_NNODES"], job: &[&["PMIX_NAMESPACE"]] },
    Launcher { name: "PMI", rank: "PMI_RANK", with: &["PMI_RANK"], size: &["PMI_SIZE"],
        local: Some(("MPI_LOCALRANKID", "MPI_LOCALNRANKS")),
        here: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
        hosts: &["SLURM_STEP_NUM_NODES", "SLURM_NNODES"],
        job: &[&["PMI_JOBID", "PMI_KVS", "SLURM_JOB_ID"]] },
    Launcher { name: "SLURM", rank: "SLURM_PROCID", with: &["SLURM_STEP_ID", "SLURM_STEPID"],
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"],
        local: Some(("SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE")), here: &[],
        hosts: &["SLURM_STEP_NUM_NODES", "SLURM_NNODES"],
        job: &[&["SLURM_JOB_ID", "SLURM_JOBID"], &["SLURM_STEP_ID", "SLURM_STEPID"]] },
];

/// The variable of SLURM with this host's index in `SLURM_STEP_TASKS_PER_NODE`.
pub const SLURM_NODE: &str = "SLURM_NODEID";

/// The variables of the local rank and of the number of local ranks, for each launcher.
pub fn local_ranks() -> impl Iterator<Item = (&'static str, &'static str)> {
    LAUNCHERS.iter().filter_map(|launcher| launcher.local)
}

/// This process's rank: the value of `MP_RANK`, else of the variable of torchrun, Open MPI, PMIx,
/// PMI or SLURM, in the order in which `mp` reads them. `None` if no launcher started the process,
/// or if the value is not a number. Use it only for names of files and lines of a log.
pub fn rank() -> Option<u32> {
    rank_by(&|name| std::env::var(name).ok().filter(|text| !text.is_empty()))
}

fn rank_by(get: Get<'_>) -> Option<u32> {
    let set = |names: Names| names.iter().any(|name| get(name).is_some());
    let mut complete = LAUNCHERS.iter().filter(|of| set(of.with));
    complete.find_map(|of| get(of.rank))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_is_that_of_the_first_launcher_that_is_set() {
        type Case<'a> = (&'a [(&'a str, &'a str)], Option<u32>);
        let cases: [Case; 7] = [
            (&[], None),
            (&[("MP_RANK", "3"), ("PMI_RANK", "4")], Some(3)),
            (&[("RANK", "1")], None),
            (&[("RANK", "1"), ("WORLD_SIZE", "2")], Some(1)),
            (&[("SLURM_PROCID", "5")], None),
            (&[("SLURM_PROCID", "5"), ("SLURM_STEPID", "0")], Some(5)),
            (&[("OMPI_COMM_WORLD_RANK", "x")], None),
        ];
        for (set, rank) in cases {
            let get = |name: &str| {
                let found = set.iter().find(|(n, _)| *n == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(rank_by(&get), rank, "{set:?}");
        }
    }
}
