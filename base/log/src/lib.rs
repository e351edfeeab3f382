//! Log output of the libraries: every program of the project calls [`init`] first.
//!
//! Libraries emit `tracing` events and print nothing. This crate writes warnings and errors to
//! standard error, one line each. `GDS_LOG` sets another level, and `GDS_TRACE=1` adds the trace of
//! submissions. If the process is a rank, each line begins with the rank's number.

use std::fmt;

use tracing::{Event, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;

/// The `tracing` target of the submission trace of gdsync, which `GDS_TRACE=1` switches on.
const TRACE: &str = "gdsync::trace";

/// The value of `GDS_LOG` is not a level.
#[derive(Debug, thiserror::Error)]
#[error("GDS_LOG={0:?}: must be off, error, warn, info, debug or trace")]
pub struct NoLevel(String);

/// Installs the subscriber that writes events of the level in `GDS_LOG` and of higher levels.
/// `rank` is the prefix of each line. A subscriber that is installed already stays.
///
/// # Errors
/// The value of `GDS_LOG` is not a level.
pub fn init(rank: Option<u32>) -> Result<(), NoLevel> {
    let variable = |name| std::env::var_os(name).unwrap_or_default();
    let level = level(&variable("GDS_LOG").to_string_lossy())?;
    let traced = variable("GDS_TRACE") == "1";
    let subscriber = subscriber(level, traced, rank, std::io::stderr);
    // `try_init` fails if a subscriber is installed already.
    let _ = tracing::subscriber::set_global_default(subscriber);
    Ok(())
}

fn level(text: &str) -> Result<LevelFilter, NoLevel> {
    match text {
        "" => Ok(LevelFilter::WARN),
        _ => text.parse().map_err(|_| NoLevel(text.to_owned())),
    }
}

fn subscriber(
    level: LevelFilter,
    traced: bool,
    rank: Option<u32>,
    writer: impl for<'w> MakeWriter<'w> + Send + Sync + 'static,
) -> impl Subscriber + Send + Sync {
    let mut shown = Targets::new().with_default(level);
    if traced {
        shown = shown.with_target(TRACE, LevelFilter::INFO);
    }
    let lines = tracing_subscriber::fmt::layer()
        .event_format(Lines { rank })
        .with_writer(writer);
    tracing_subscriber::registry().with(shown).with(lines)
}

/// Formats an event as `rank 3: WARN mp: text`, each line of the text with this prefix.
struct Lines {
    rank: Option<u32>,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = String::new();
        context.format_fields(Writer::new(&mut text), event)?;
        let metadata = event.metadata();
        for line in text.lines() {
            if let Some(rank) = self.rank {
                write!(writer, "rank {rank}: ")?;
            }
            writeln!(writer, "{} {}: {line}", metadata.level(), metadata.target())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(level_text: &str, traced: bool, rank: Option<u32>) -> String {
        let kept = Kept::default();
        let writer = kept.clone();
        let level = level(level_text).unwrap();
        let subscriber = subscriber(level, traced, rank, move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(target: "mp", "rank {} is silent", 1);
            tracing::info!(target: "gdsync", "a choice");
            tracing::info!(target: "gdsync::trace", "stream 4\n  fence");
        });
        let bytes = kept.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn warnings_are_shown_by_default_and_each_line_names_its_rank() {
        assert_eq!(logged("", false, None), "WARN mp: rank 1 is silent\n");
        assert_eq!(
            logged("", true, Some(3)),
            "rank 3: WARN mp: rank 1 is silent\n\
             rank 3: INFO gdsync::trace: stream 4\n\
             rank 3: INFO gdsync::trace:   fence\n"
        );
        assert_eq!(logged("off", false, Some(3)), "");
        assert!(logged("info", false, None).contains("INFO gdsync: a choice\n"));
    }

    #[test]
    fn unknown_level_is_refused_with_its_name() {
        let text = level("loud").unwrap_err().to_string();
        assert!(
            text.contains("GDS_LOG=\"loud\"") && text.contains("debug"),
            "{text}"
        );
    }
}
