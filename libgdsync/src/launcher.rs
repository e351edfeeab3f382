//! The rank of this process, read from a launcher's variables.

/// This process's rank: `MP_RANK`, else the variable of torchrun, Open MPI, PMIx, PMI or SLURM, in
/// the order in which `mp` reads them. `None` if no launcher has started the process, or if the
/// value is not a number: this is only for names of files and lines of a log.
pub fn rank() -> Option<u32> {
    rank_by(|name| std::env::var(name).ok().filter(|text| !text.is_empty()))
}

/// Each variable, with the one that has to be set too: other programs set `RANK` and
/// `SLURM_PROCID` alone.
const RANKS: [(&str, &str); 7] = [
    ("MP_RANK", "MP_RANK"),
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK"),
    ("PMIX_RANK", "PMIX_RANK"),
    ("PMI_RANK", "PMI_RANK"),
    ("SLURM_PROCID", "SLURM_STEP_ID"),
    ("SLURM_PROCID", "SLURM_STEPID"),
];

fn rank_by(get: impl Fn(&str) -> Option<String>) -> Option<u32> {
    let mut set = RANKS.iter().filter(|(_, with)| get(with).is_some());
    set.find_map(|(name, _)| get(name))?.parse().ok()
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
            assert_eq!(rank_by(get), rank, "{set:?}");
        }
    }
}
