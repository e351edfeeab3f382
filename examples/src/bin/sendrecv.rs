//! Two ranks and the CPU: messages, tags, and a message that is too long.
//!
//! Shows that a receive names the source and a tag, and matches the next message of that tag,
//! independently of other tags. A message longer than its receive fails on both sides, and does not
//! affect the messages after it.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::Parser;
use mp::gdsync::gpu::MemoryKind;
use mp::{Context, Kind};
use mp_examples::ranks::{self, Options};

const EXAMPLES: &str = "\
Examples:
  target/release/mprun -n 2 target/release/sendrecv
          two ranks on this host, as processes
  target/release/sendrecv --ranks-as-threads 2
          two ranks as threads of one process";

/// Two ranks exchange messages by the CPU: tags, and a truncation that both detect.
#[derive(Parser)]
#[command(after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    ranks: Options,
}

const LIMIT: Duration = Duration::from_secs(30);
/// Bytes of the message that is too long: above the default eager limit of 4096 bytes.
const LONG: usize = 10_000;
/// Tags are numbers that the application chooses.
const NAMES: u32 = 7;
const NUMBERS: u32 = 8;
const VERDICT: u32 = 9;

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    ranks::play(
        &cli.ranks,
        |b| b,
        |ctx| {
            ranks::expect(ctx, 2)?;
            if ctx.rank() == 0 {
                sender(ctx)
            } else {
                receiver(ctx)
            }
        },
    )
}

fn sender(ctx: &Context) -> Result<()> {
    // Memory that messages are sent from is registered with the NIC, here by its allocation.
    let memory = ctx.alloc(MemoryKind::Pinned, LONG + 1)?;
    memory.write(0, b"Ada")?;
    memory.write(16, b"1815")?;

    // A receive may be posted long before its message is sent.
    let verdict = ctx.irecv(1, VERDICT, &memory.slice(LONG, 1)?)?;

    // Sends return at once; the memory must not change until the wait returns.
    let name = ctx.isend(1, NAMES, &memory.slice(0, 3)?)?;
    let number = ctx.isend(1, NUMBERS, &memory.slice(16, 4)?)?;
    mp::wait_all(&[name, number], LIMIT)?;

    // The receive has room for 8 bytes. A message above the eager limit of the context waits for
    // its receive, so its own request reports that it was too long. A message below the limit has
    // ended by then; the credit for a later message carries the report, and `Context::error`
    // returns it.
    let too_long = ctx.isend(1, NAMES, &memory.slice(0, LONG)?)?;
    match too_long.wait(LIMIT) {
        Err(e) if e.kind() == Kind::Truncated => {}
        other => bail!("a message of {LONG} bytes in a receive of 8 ended with {other:?}"),
    }

    // Only that message failed. The next one of the same tag arrives.
    memory.write(0, b"Grace")?;
    ctx.isend(1, NAMES, &memory.slice(0, 5)?)?.wait(LIMIT)?;

    let done = verdict.wait(LIMIT)?;
    ensure!(
        done.peer == 1 && done.tag == VERDICT && done.len == 1,
        "the verdict is wrong: {done:?}"
    );
    println!("sendrecv: 3 messages arrived by their tags, 1 was too long and both ranks know: ok");
    Ok(())
}

fn receiver(ctx: &Context) -> Result<()> {
    let memory = ctx.alloc(MemoryKind::Pinned, 64)?;
    let text = |offset, len| {
        let mut bytes = vec![0; len];
        memory.read(offset, &mut bytes)?;
        Ok::<_, mp::Error>(String::from_utf8_lossy(&bytes).into_owned())
    };

    // The number was sent last and is received first: the tag selects it.
    let number = ctx.irecv(0, NUMBERS, &memory.slice(0, 8)?)?.wait(LIMIT)?;
    ensure!(
        number.len == 4 && text(0, 4)? == "1815",
        "the number is wrong: {number:?}"
    );
    let name = ctx.irecv(0, NAMES, &memory.slice(8, 8)?)?.wait(LIMIT)?;
    ensure!(
        name.len == 3 && text(8, 3)? == "Ada",
        "the name is wrong: {name:?}"
    );

    // The message has thousands of bytes and the receive has 8. Memory outside the receive is not
    // written.
    memory.write(24, b"untouched")?;
    match ctx.irecv(0, NAMES, &memory.slice(16, 8)?)?.wait(LIMIT) {
        Err(e) if e.kind() == Kind::Truncated && e.rank() == Some(0) => {}
        other => bail!("a message of {LONG} bytes in a receive of 8 ended with {other:?}"),
    }
    ensure!(
        text(24, 9)? == "untouched",
        "memory outside the receive was written"
    );

    let name = ctx.irecv(0, NAMES, &memory.slice(40, 24)?)?.wait(LIMIT)?;
    ensure!(
        name.len == 5 && text(40, 5)? == "Grace",
        "the name is wrong: {name:?}"
    );
    ctx.isend(0, VERDICT, &memory.slice(0, 1)?)?.wait(LIMIT)?;
    Ok(())
}
