//! Two ranks and the CPU: messages, tags, and what becomes of one that is too long.
//!
//! Teaches: a receive names the sender and a tag, and matches the next message of that tag,
//! whatever the order of other tags. A message longer than the memory of its receive is an error
//! on both sides, and the messages behind it are none the worse for it.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::Parser;
use mp::gdsync::gpu::MemoryKind;
use mp::{Context, Kind};
use mp_examples::ranks::{self, Options};

/// Two ranks exchange messages by the CPU: tags, and an error that both notice.
#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    ranks: Options,
}

const LIMIT: Duration = Duration::from_secs(30);
/// Bytes of the message that is too long: more than the eager limit, which is 4096 by default.
const LONG: usize = 10_000;
/// Tags are numbers of the application's choice.
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
    // Memory that messages are sent from is registered with the NIC: here by its allocation.
    let memory = ctx.alloc(MemoryKind::Pinned, LONG + 1)?;
    memory.write(0, b"Ada")?;
    memory.write(16, b"1815")?;

    // A receive may be posted long before its message.
    let verdict = ctx.irecv(1, VERDICT, &memory.slice(LONG, 1)?)?;

    // Sends return at once; what is sent must stay as it is until the wait returns.
    let name = ctx.isend(1, NAMES, &memory.slice(0, 3)?)?;
    let number = ctx.isend(1, NUMBERS, &memory.slice(16, 4)?)?;
    mp::wait_all(&[name, number], LIMIT)?;

    // The receive has room for 8 bytes. Messages above the eager limit of the context wait for
    // their receive, so the request itself tells that this one was too long. Of one below it, the
    // sender learns with the credit for a later message: `Context::error` says so then.
    let too_long = ctx.isend(1, NAMES, &memory.slice(0, LONG)?)?;
    match too_long.wait(LIMIT) {
        Err(e) if e.kind() == Kind::Truncated => {}
        other => bail!("{LONG} bytes into 8: {other:?}"),
    }

    // That was one message. The next of the same tag arrives.
    memory.write(0, b"Grace")?;
    ctx.isend(1, NAMES, &memory.slice(0, 5)?)?.wait(LIMIT)?;

    let done = verdict.wait(LIMIT)?;
    ensure!(
        done.peer == 1 && done.tag == VERDICT && done.len == 1,
        "{done:?}"
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

    // The number was sent last and is received first: its tag says which one it is.
    let number = ctx.irecv(0, NUMBERS, &memory.slice(0, 8)?)?.wait(LIMIT)?;
    ensure!(number.len == 4 && text(0, 4)? == "1815", "{number:?}");
    let name = ctx.irecv(0, NAMES, &memory.slice(8, 8)?)?.wait(LIMIT)?;
    ensure!(name.len == 3 && text(8, 3)? == "Ada", "{name:?}");

    // Thousands of bytes come, where 8 have room. None of the memory beyond is touched.
    memory.write(24, b"untouched")?;
    match ctx.irecv(0, NAMES, &memory.slice(16, 8)?)?.wait(LIMIT) {
        Err(e) if e.kind() == Kind::Truncated && e.rank() == Some(0) => {}
        other => bail!("{LONG} bytes into 8: {other:?}"),
    }
    ensure!(
        text(24, 9)? == "untouched",
        "more than the receive's memory was written"
    );

    let name = ctx.irecv(0, NAMES, &memory.slice(40, 24)?)?.wait(LIMIT)?;
    ensure!(name.len == 5 && text(40, 5)? == "Grace", "{name:?}");
    ctx.isend(0, VERDICT, &memory.slice(0, 1)?)?.wait(LIMIT)?;
    Ok(())
}
