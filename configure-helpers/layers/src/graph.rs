//! A dependency graph: its cycles, and the height of each node above the nodes that it uses.

/// Edges between nodes that are numbered from 0.
pub struct Edges {
    /// By node: the nodes that it reaches, along any number of edges.
    reaches: Vec<Vec<bool>>,
    /// By node: the nodes to which it has an edge.
    to: Vec<Vec<usize>>,
}

impl Edges {
    pub fn new(nodes: usize) -> Edges {
        Edges {
            reaches: vec![vec![false; nodes]; nodes],
            to: vec![Vec::new(); nodes],
        }
    }

    pub fn add(&mut self, from: usize, to: usize) {
        if self.to[from].contains(&to) {
            return;
        }
        self.to[from].push(to);
        let ends: Vec<usize> = (0..self.to.len())
            .filter(|&n| n == to || self.reaches[to][n])
            .collect();
        for start in 0..self.to.len() {
            if start == from || self.reaches[start][from] {
                for &end in &ends {
                    self.reaches[start][end] = true;
                }
            }
        }
    }

    /// The cycles: sets of nodes that reach each other.
    pub fn circles(&self) -> Vec<Vec<usize>> {
        let nodes = 0..self.to.len();
        let together = |a: usize, b: usize| a == b || self.reaches[a][b] && self.reaches[b][a];
        nodes
            .clone()
            .filter(|&first| (0..first).all(|b| !together(first, b)))
            .map(|first| nodes.clone().filter(|&n| together(first, n)).collect())
            .filter(|circle: &Vec<usize>| circle.len() > 1)
            .collect()
    }

    /// The nodes, the highest first; those of one height by name.
    pub fn highest_first(&self, names: &[&str]) -> Vec<usize> {
        let heights = self.heights();
        let mut order: Vec<usize> = (0..heights.len()).collect();
        order.sort_by_key(|&i| (usize::MAX - heights[i], names[i]));
        order
    }

    /// By node, the longest path downwards, without cycles: 0 uses nothing.
    fn heights(&self) -> Vec<usize> {
        let mut heights = vec![0; self.to.len()];
        for _ in 0..self.to.len() {
            for from in 0..self.to.len() {
                for &to in &self.to[from] {
                    if !self.reaches[to][from] {
                        heights[from] = heights[from].max(heights[to] + 1);
                    }
                }
            }
        }
        heights
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_a_circle_have_one_height() {
        let mut edges = Edges::new(5);
        for (from, to) in [(0, 1), (1, 2), (2, 1), (2, 3)] {
            edges.add(from, to);
        }
        assert_eq!(edges.circles(), [[1, 2]]);
        let heights = edges.heights();
        assert_eq!((heights[3], heights[4]), (0, 0));
        assert!(
            heights[2] > heights[3] && heights[0] > heights[1],
            "{heights:?}"
        );
    }

    #[test]
    fn edges_that_all_point_down_form_no_circle() {
        let mut edges = Edges::new(4);
        for (from, to) in [(3, 2), (3, 1), (2, 0), (1, 0), (3, 0)] {
            edges.add(from, to);
        }
        assert!(edges.circles().is_empty());
        assert_eq!(edges.heights(), [0, 1, 1, 2]);
    }
}
