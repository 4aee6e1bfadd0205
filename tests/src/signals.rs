//! SIGINT and SIGTERM as a call.

use anyhow::Result;
use tokio::signal::unix::{SignalKind, signal};

/// Calls `end` on each SIGINT or SIGTERM.
///
/// A handler, not a mask: children would inherit a mask, and could not be told to end.
///
/// # Errors
/// When the handlers cannot be installed.
pub fn on_end(end: impl Fn() + Send + 'static) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        let _guard = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => end(),
                    _ = terminate.recv() => end(),
                }
            }
        });
    });
    Ok(())
}
