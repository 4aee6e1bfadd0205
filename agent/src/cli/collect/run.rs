//! The loop: receive, look at the clock, show.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use podwire_datapath::ErrorKind;
use podwire_datapath::collect::{
    self, Background, Collector, Files, Losses, Pcapng, Report, Sink, Source, Tap,
};
use tokio::signal::unix::{SignalKind, signal};

use super::json::{self, Moment};
use super::printer::Printer;
use super::table::{self, Screen};
use super::{Output, Wanted};
use crate::failure::Failure;

/// How long a source waits for frames at most: signals and windows are looked at in between.
const WAIT: Duration = Duration::from_millis(20);
/// A terminal that does not say how large it is.
const SIZE: (usize, usize) = (80, 24);

pub(super) fn run(wanted: &Wanted) -> Result<(), Failure> {
    let begun = Arc::new(AtomicBool::new(false));
    let pressed = on_signals(begun.clone())?;
    let options = wanted.options();
    let opened = collect::open(&wanted.interface, &options.wanted).map_err(refused)?;
    let sinks = sinks(wanted)?;
    let mut source = opened.source;
    let mut show = Show::new(wanted, source.describe())?;
    if let Some(why) = opened.fallback {
        say(&format!("AF_XDP is not used: {why}"));
    }
    say(&format!("collecting: {}", source.describe()));
    let mut collector = Collector::new(options, sinks);
    begun.store(true, Ordering::Relaxed);
    let mut failed = false;
    let began = Instant::now();
    let end = wanted.duration.and_then(|time| began.checked_add(time));
    let result: Result<(), Failure> = loop {
        if let Err(error) = source.receive(WAIT, &mut |received| collector.receive(received)) {
            break Err(error.into());
        }
        collector.tick(now());
        let over = end.is_some_and(|end| Instant::now() >= end);
        if over || collector.is_full() || pressed.load(Ordering::Relaxed) != 0 {
            break Ok(());
        }
        if show.is_due() {
            failed |= tell_failures(&collector);
            let losses = collector.sink().losses();
            if let Err(error) = show.show(&collector.report(wanted.top), &mut *source, &losses, false) {
                break Err(error);
            }
        }
    };
    // Whatever ended it: files are whole.
    let finished = collector.finish();
    failed |= tell_failures(&collector);
    let losses = collector.sink().losses();
    let shown = show.show(&collector.report(wanted.top), &mut *source, &losses, true);
    result?;
    finished?;
    shown?;
    if failed { Err(Failure::Shown(1)) } else { Ok(()) }
}

fn refused(error: podwire_datapath::Error) -> Failure {
    match error.kind() {
        ErrorKind::Invalid => Failure::Refused(vec![error.to_string()]),
        _ => error.into(),
    }
}

fn sinks(wanted: &Wanted) -> Result<Vec<Background>, Failure> {
    let mut sinks = Vec::new();
    if let Some(path) = &wanted.write {
        let path = if is_stdout(path) { Path::new("/dev/stdout") } else { path };
        let files = Files::new(path, wanted.rotation());
        sinks.push(Background::start("file", Pcapng::create(files, wanted.compression())?)?);
    }
    if let Some(name) = &wanted.tap {
        sinks.push(Background::start("tap", Tap::create(name).map_err(refused)?)?);
    }
    Ok(sinks)
}

fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn tell_failures(collector: &Collector<Vec<Background>>) -> bool {
    let failures: Vec<_> = collector.sink().iter().filter_map(Background::failure).collect();
    failures.iter().for_each(|error| say(&format!("error: {error}")));
    !failures.is_empty()
}

fn say(line: &str) {
    // Nobody may be there to read it; what is collected matters more.
    let _ = writeln!(anstream::stderr().lock(), "{line}");
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, super::nanoseconds)
}

/// Counts SIGINT, SIGTERM and SIGHUP. The second one ends the process where it is, and so does the
/// first before it has begun: a pipe that nobody reads is waited for.
fn on_signals(begun: Arc<AtomicBool>) -> Result<Arc<AtomicU32>, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate, mut hang_up) = {
        let _guard = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?)
    };
    let count = Arc::new(AtomicU32::new(0));
    let counted = count.clone();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hang_up.recv() => {}
                }
                if counted.fetch_add(1, Ordering::Relaxed) != 0 || !begun.load(Ordering::Relaxed) {
                    std::process::exit(130);
                }
            }
        });
    })?;
    Ok(count)
}

/// What is shown, and when.
struct Show {
    source: String,
    output: Output,
    /// Whether a table is drawn over the last one.
    live: bool,
    interval: Duration,
    began: Instant,
    last: Instant,
    report: Option<Report>,
    screen: Screen,
    printer: Printer,
}

impl Show {
    fn new(wanted: &Wanted, source: String) -> Result<Self, Failure> {
        // Standard output may be the file.
        let to_stderr = wanted.write.as_deref().is_some_and(is_stdout);
        let terminal = !to_stderr && std::io::stdout().is_terminal();
        let output = wanted.output.unwrap_or(if terminal { Output::Table } else { Output::Json });
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let live = output == Output::Table && terminal && !dumb;
        let (began, interval) = (Instant::now(), wanted.interval);
        Ok(Self {
            source,
            output,
            live,
            interval,
            began,
            last: began,
            report: None,
            screen: Screen::default(),
            printer: Printer::start(to_stderr)?,
        })
    }

    fn is_due(&self) -> bool {
        self.last.elapsed() >= self.interval && self.printer.is_ready()
    }

    fn show(
        &mut self,
        report: &Report,
        source: &mut dyn Source,
        sink_losses: &Losses,
        last: bool,
    ) -> Result<(), Failure> {
        let source_losses = source.losses();
        let moment = Moment {
            last,
            elapsed: self.began.elapsed(),
            source: &self.source,
            source_losses: &source_losses,
            sink_losses,
        };
        let text = match self.output {
            Output::Json => format!("{}\n", json::object(report, &moment)),
            Output::Table => {
                // At the end, rates over all of it.
                let nothing = Report::default();
                let before = match &self.report {
                    _ if last => Some((&nothing, moment.elapsed)),
                    before => before.as_ref().map(|before| (before, self.last.elapsed())),
                };
                let text = table::text(report, before, &moment);
                match (last, self.live) {
                    (true, true) => self.screen.clear() + &text,
                    (true, false) => text,
                    (false, true) => self.screen.over(&text, size()),
                    (false, false) => String::new(),
                }
            }
        };
        self.last = Instant::now();
        self.report = Some(report.clone());
        let printed = if last { self.printer.finish(text) } else { self.printer.print(text) };
        Ok(printed?)
    }
}

/// Columns and lines of the terminal.
fn size() -> (usize, usize) {
    terminal_size::terminal_size().map_or(SIZE, |(width, height)| (width.0.into(), height.0.into()))
}
