//! What commands lose of the same VXLAN stream at several offers, on one processor: the kernel's receiving thread,
//! and the command.

use std::time::Duration;

use anyhow::{Context, Result};
use podwire_bench::calm::Calm;
use podwire_bench::frame;
use podwire_bench::generator::mac;
use podwire_bench::spread::Spread;
use podwire_bench::target::Target;
use serde::Serialize;

use crate::pace;
use crate::site::{Cable, Site, Worker};
use crate::tool::{self, COLLECT, DEVICE, PCAPNG, TCPDUMP, Tool};

/// How it is measured.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    pub rounds: usize,
    /// Packets per second.
    pub offers: Vec<u32>,
    /// Of one run.
    pub milliseconds: u64,
    /// Bytes of a mirrored frame.
    pub frame_len: usize,
}

/// How long a command takes to be ready.
const START: Duration = Duration::from_millis(500);
/// How long it may take for what is on its way.
const END: Duration = Duration::from_millis(150);
/// Losses at which commands are compared, in percent. A few percent are lost at any offer, in the veth pair's queue, when
/// the machine is busy: less than this says nothing about a command.
pub const EQUAL: [f64; 1] = [10.0];

/// A command at an offer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Cell {
    pub offer: u32,
    pub sent: u64,
    pub kept: u64,
    /// Packets per second sent, and kept, a value for each round.
    pub sent_rates: Vec<f64>,
    pub rates: Vec<f64>,
    /// Processor time per packet sent in ns: the receiving kernel's.
    pub kernel: Vec<f64>,
    /// The same of the command.
    pub command: Vec<f64>,
}

/// A row of the result.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub name: &'static str,
    pub cells: Vec<Cell>,
}

/// Where a stream ends: at a host that it is addressed to or not, which has a tunnel device of the kernel's or not.
struct Goal {
    site: Site,
    cable: Cable,
    kernel: Worker,
    frame: Vec<u8>,
}

impl Goal {
    fn new(addressed: bool, device: bool, frame_len: usize) -> Result<Self> {
        let site = Site::new()?;
        let cable = site.lay()?;
        let kernel = site.receive_apart(&cable)?;
        let mut to = mac(&site.to, &cable.to)?;
        if addressed {
            site.to.ip(&["addr", "add", "192.0.2.2/24", "dev", &cable.to])?;
        } else {
            to[5] ^= 1;
        }
        if device {
            let words = "link add vxlan1 type vxlan id 1 dstport 4789 local 192.0.2.2 nolearning";
            site.to.ip(&words.split(' ').collect::<Vec<_>>())?;
            site.to.ip(&["link", "set", "vxlan1", "up"])?;
        }
        let frame = frame::vxlan(to, [192, 0, 2, 1], [192, 0, 2, 2], frame_len);
        Ok(Self { site, cable, kernel, frame })
    }
}

/// A stream that is addressed to another host: the stack is done with it as soon as packet sockets have seen it, whole
/// outer frames.
///
/// # Errors
/// Without root or two processors.
pub fn passing(plan: &Plan, calm: &mut Calm) -> Result<Vec<Row>> {
    let goal = Goal::new(false, false, plan.frame_len)?;
    measure(plan, calm, &tool::passing()?, |_| &goal)
}

/// A stream that is addressed to this host, of which all commands keep the mirrored frames: at the kernel's tunnel
/// device, or past the stack.
///
/// # Errors
/// As of [`passing`].
pub fn addressed(plan: &Plan, calm: &mut Calm) -> Result<Vec<Row>> {
    let (device, bare) = (Goal::new(true, true, plan.frame_len)?, Goal::new(true, false, plan.frame_len)?);
    measure(plan, calm, &tool::addressed()?, |tool| if tool.at_device { &device } else { &bare })
}

fn measure<'a>(
    plan: &Plan,
    calm: &mut Calm,
    tools: &[Tool],
    goal: impl Fn(&Tool) -> &'a Goal,
) -> Result<Vec<Row>> {
    let cells = || plan.offers.iter().map(|offer| Cell { offer: *offer, ..Cell::default() }).collect();
    let mut rows: Vec<Row> = tools.iter().map(|tool| Row { name: tool.name, cells: cells() }).collect();
    let run = |tool: &Tool, offer: u32| -> Result<Run> {
        let Goal { site, cable, kernel, frame } = goal(tool);
        let interface = if tool.at_device { "vxlan1" } else { &cable.to };
        let running = tool.start(&site.to, interface)?;
        std::thread::sleep(START);
        let before = (running.time()?, kernel.time()?);
        let time = Duration::from_millis(plan.milliseconds);
        let sent = pace::at_rate(&cable.outlet, frame, offer, time)?;
        std::thread::sleep(END);
        let (command, kernel) = (running.time()? - before.0, kernel.time()? - before.1);
        let kept = running.end().with_context(|| tool.name.to_owned())?;
        Ok(Run { sent, kept, kernel, command })
    };
    for round in 0..plan.rounds {
        for at in 0..plan.offers.len() {
            for turn in 0..tools.len() {
                let index = (turn + round) % tools.len();
                let cell = &mut rows[index].cells[at];
                cell.add(&calm.run(tools[index].name, || run(&tools[index], cell.offer))?);
            }
        }
    }
    Ok(rows)
}

/// One run: what was sent and kept, and processor time in ns of the receiving kernel and the command.
struct Run {
    sent: pace::Sent,
    kept: u64,
    kernel: u64,
    command: u64,
}

impl Cell {
    fn add(&mut self, run: &Run) {
        let (frames, seconds) = (run.sent.frames, run.sent.time.as_secs_f64());
        self.sent += frames;
        self.kept += run.kept.min(frames);
        self.sent_rates.push(frames as f64 / seconds);
        self.rates.push(run.kept as f64 / seconds);
        self.kernel.push(run.kernel as f64 / frames as f64);
        self.command.push(run.command as f64 / frames as f64);
    }

    /// Percent of what was sent.
    pub fn lost(&self) -> f64 {
        self.sent.saturating_sub(self.kept) as f64 * 100.0 / self.sent.max(1) as f64
    }
}

/// Packets per second that are kept where so many percent are lost: between two offers on a straight line; of the
/// highest offer where less is lost even there.
pub fn kept_at(row: &Row, percent: f64, round: usize) -> Option<(f64, bool)> {
    let points: Vec<(f64, f64)> = row
        .cells
        .iter()
        .filter_map(|cell| {
            let (sent, kept) = (*cell.sent_rates.get(round)?, *cell.rates.get(round)?);
            Some((sent, (1.0 - kept / sent).max(0.0) * 100.0))
        })
        .collect();
    let Some(above) = points.iter().position(|(_, lost)| *lost > percent) else {
        return points.last().map(|(sent, lost)| (sent * (1.0 - lost / 100.0), false));
    };
    let (sent, lost) = points[above];
    let (low, low_lost) = above.checked_sub(1).map_or((0.0, 0.0), |below| points[below]);
    let offer = low + (sent - low) * (percent - low_lost) / (lost - low_lost);
    Some((offer * (1.0 - percent / 100.0), true))
}

/// podwire by tcpdump, of the same round.
pub fn targets(rows: &[Row]) -> Vec<Target> {
    let row = |name: &str| rows.iter().find(|row| row.name == name);
    let rival = row(TCPDUMP).or(row(DEVICE));
    let Some((own, rival)) = row(COLLECT).or(row(PCAPNG)).zip(rival) else { return Vec::new() };
    let rounds = own.cells.first().map_or(0, |cell| cell.rates.len());
    EQUAL
        .iter()
        .map(|percent| {
            let ratio = |round| Some(kept_at(own, *percent, round)?.0 / kept_at(rival, *percent, round)?.0);
            Target {
                what: format!("{} / {}: kept per second at {percent} % loss", own.name, rival.name),
                ratio: Spread::of((0..rounds).filter_map(ratio)),
                bound: Some(2.0),
                at_most: false,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[(f64, f64)]) -> Row {
        let cell = |(sent, kept): &(f64, f64)| Cell {
            sent_rates: vec![*sent],
            rates: vec![*kept],
            ..Cell::default()
        };
        Row { name: "", cells: cells.iter().map(cell).collect() }
    }

    #[test]
    fn between_two_offers_on_a_straight_line() {
        let row = row(&[(100.0, 100.0), (200.0, 160.0)]);
        assert_eq!(kept_at(&row, 10.0, 0), Some((135.0, true)));
        assert_eq!(kept_at(&row, 30.0, 0), Some((160.0, false)));
        assert_eq!(kept_at(&row, 10.0, 1), None);
    }
}
