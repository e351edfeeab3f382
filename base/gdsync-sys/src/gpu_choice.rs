//! The GPU of a process that names none. The local rank (the rank's number on its host) selects it.

use crate::launcher::{Get, SLURM_NODE, local_ranks};

/// The local rank of a process and the number of ranks on its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalRank {
    /// The local rank.
    pub rank: u32,
    /// The number of ranks of the host, if the launcher sets it.
    pub size: Option<u32>,
    /// The variable of the local rank.
    pub variable: &'static str,
    /// The variable of the number of ranks.
    pub size_variable: &'static str,
}

impl LocalRank {
    /// The local rank in the environment, if a launcher set it.
    ///
    /// # Errors
    /// The value of a variable is not a number; the error names the variable.
    pub fn find(get: Get<'_>) -> Result<Option<LocalRank>, String> {
        for (variable, size_variable) in local_ranks() {
            let Some(text) = get(variable) else { continue };
            let rank = number(variable, &text)?;
            let size = match (size_variable, get(size_variable)) {
                (_, None) => None,
                ("SLURM_STEP_TASKS_PER_NODE", Some(text)) => {
                    let node = get(SLURM_NODE).and_then(|node| node.parse().ok());
                    tasks(&text, node.unwrap_or(0))
                }
                (name, Some(text)) => Some(number(name, &text)?),
            };
            return Ok(Some(LocalRank {
                rank,
                size,
                variable,
                size_variable,
            }));
        }
        Ok(None)
    }

    /// The number of the rank's GPU, out of `gpus`.
    pub fn gpu(&self, gpus: u32) -> u32 {
        self.rank % gpus.max(1)
    }

    /// The reason for this choice, as text.
    pub fn reason(&self, gpus: u32) -> String {
        let (variable, rank) = (self.variable, self.rank);
        let of = match gpus {
            1 => "the only GPU".to_owned(),
            _ => format!("of {gpus} GPUs"),
        };
        format!("{of}, by {variable}={rank}")
    }

    /// The cost, as text, if the host has more ranks than GPUs.
    pub fn crowding(&self, gpus: u32) -> Option<String> {
        let size = self.size.filter(|size| *size > gpus)?;
        let variable = self.size_variable;
        Some(format!(
            "{size} ranks of this host ({variable}) share {gpus} of its GPUs, which runs their \
             processes by turns: a message between two of them waits for time slices. An iteration \
             of halo2d took 4.5 ms with three ranks on one H200, and takes tens of microseconds with \
             a GPU for each. Start at most {gpus} ranks a host, make more GPUs visible, or run \
             NVIDIA's Multi-Process Service (nvidia-cuda-mps-control -d)"
        ))
    }
}

fn number(variable: &str, text: &str) -> Result<u32, String> {
    let number = text.trim().parse();
    number.map_err(|_| format!("{variable}={text:?} is not a number"))
}

/// The number of tasks of a node in a SLURM step: `4(x2),3` is four tasks on each of two nodes,
/// then three.
fn tasks(text: &str, node: u32) -> Option<u32> {
    let mut before = 0u32;
    for part in text.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        before = before.saturating_add(nodes);
        if node < before {
            return tasks.parse().ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Result<Option<LocalRank>, String> {
        LocalRank::find(&|name| {
            let mut all = variables.iter();
            all.find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())
        })
    }

    #[test]
    fn local_rank_and_count_are_read_from_the_variables_of_each_launcher() {
        assert_eq!(found(&[("MP_RANK", "3")]), Ok(None));
        for (rank, size) in local_ranks() {
            let local = found(&[(rank, "3"), (size, "4")]).unwrap().unwrap();
            assert_eq!((local.rank, local.size), (3, Some(4)), "{rank}");
            assert_eq!((local.variable, local.gpu(2)), (rank, 1));
            let alone = found(&[(rank, "3")]).unwrap().unwrap();
            assert_eq!(alone.size, None);
            assert!(found(&[(rank, "a")]).unwrap_err().contains(rank));
        }
        // torchrun under srun, with one task on each node.
        let both = [("SLURM_LOCALID", "0"), ("LOCAL_RANK", "5")];
        assert_eq!(found(&both).unwrap().unwrap().rank, 5);
    }

    #[test]
    fn tasks_of_a_slurm_step_are_counted_by_node() {
        let all = [4, 4, 3].map(Some);
        assert_eq!([0, 1, 2].map(|node| tasks("4(x2),3", node)), all);
        assert_eq!(
            [tasks("2", 0), tasks("2", 1), tasks("x", 0)],
            [Some(2), None, None]
        );
        let many = "4(x4294967295),3(x4294967295)";
        assert_eq!([0, u32::MAX].map(|node| tasks(many, node)), [Some(4), None]);
    }

    #[test]
    fn more_ranks_than_gpus_have_a_text_with_the_cost() {
        let local = found(&[("MP_LOCAL_RANK", "2"), ("MP_LOCAL_SIZE", "3")]);
        let local = local.unwrap().unwrap();
        assert_eq!(local.crowding(3), None);
        let text = local.crowding(1).unwrap();
        assert!(
            text.contains("4.5 ms") && text.contains("MP_LOCAL_SIZE"),
            "{text}"
        );
        assert_eq!(local.reason(4), "of 4 GPUs, by MP_LOCAL_RANK=2");
    }
}
