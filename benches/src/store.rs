//! The bootstrap store of ranks that are processes; the process that starts them hosts it.

use std::fs::File;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use anyhow::{Context, Result};
use mp::bootstrap::Secret;
use mp::bootstrap::tcp::Server;

/// Length of a job's secret in random bytes.
const SECRET: usize = 16;

/// The store of one job.
pub struct Store {
    server: Server,
    secret: String,
    size: u32,
}

impl Store {
    /// Starts a store for `size` ranks of this host.
    pub fn start(size: u32) -> Result<Store> {
        let mut bytes = [0; SECRET];
        let mut random = File::open("/dev/urandom").context("opening the random numbers")?;
        random
            .read_exact(&mut bytes)
            .context("reading random numbers")?;
        let secret: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server = Server::start(at, &Secret::from_text(&secret)?, "", size)?;
        Ok(Store {
            server,
            secret,
            size,
        })
    }

    /// Sets the variables that make a process `rank` of the job.
    pub fn set_variables<'c>(&self, command: &'c mut Command, rank: u32) -> &'c mut Command {
        command
            .env("MP_RANK", rank.to_string())
            .env("MP_SIZE", self.size.to_string())
            .env("MP_STORE", format!("tcp://{}", self.server.address()))
            .env("MP_SERVE", "0")
            .env("MP_SECRET", &self.secret)
            .env_remove("MP_JOB")
    }
}
