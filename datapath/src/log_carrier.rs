//! Log lines of the programs. In: records that a debug object (`cargo xtask ebpf --log`) writes. Out: `tracing`
//! events of the target `podwire_bpf`. The shipped object writes none.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use aya::Ebpf;
use aya_log::EbpfLogger;
use log::{Level, Log, Metadata, Record};

const PERIOD: Duration = Duration::from_millis(50);

struct Carrier;

static CARRIER: Carrier = Carrier;

impl Log for Carrier {
    fn enabled(&self, _: &Metadata) -> bool {
        true
    }

    fn log(&self, record: &Record) {
        let line = record.args();
        match record.level() {
            Level::Error => tracing::error!(target: "podwire_bpf", "{line}"),
            Level::Warn => tracing::warn!(target: "podwire_bpf", "{line}"),
            Level::Info => tracing::info!(target: "podwire_bpf", "{line}"),
            Level::Debug => tracing::debug!(target: "podwire_bpf", "{line}"),
            Level::Trace => tracing::trace!(target: "podwire_bpf", "{line}"),
        }
    }

    fn flush(&self) {}
}

/// Carries lines for as long as it lives.
pub(crate) struct LogCarrier(#[expect(dead_code, reason = "its end ends the thread")] Arc<AtomicBool>);

/// Starts to carry, when the object logs at all.
pub(crate) fn start(bpf: &mut Ebpf) -> Option<LogCarrier> {
    let mut logger = EbpfLogger::init_with_logger(bpf, &CARRIER).ok()?;
    let alive = Arc::new(AtomicBool::new(true));
    let seen: Weak<AtomicBool> = Arc::downgrade(&alive);
    std::thread::Builder::new()
        .name("bpf-log".into())
        .spawn(move || {
            while seen.upgrade().is_some_and(|alive| alive.load(Ordering::Relaxed)) {
                logger.flush();
                std::thread::sleep(PERIOD);
            }
        })
        .ok()?;
    Some(LogCarrier(alive))
}
