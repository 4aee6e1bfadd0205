//! Frames received and thrown away: podwire beside C, at saturation and at an offer that both can take.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use podwire_bench::calm::Calm;
use podwire_bench::frame;
use podwire_bench::generator::mac;
use podwire_bench::kernel::Attached;
use podwire_bench::spread::Spread;
use podwire_bench::target::Target;
use serde::Serialize;

use crate::own::Own;
use crate::pace;
use crate::rival::Rival;
use crate::site::{Cable, RECEIVER, Site, Worker};

/// How it is measured.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Plan {
    pub rounds: usize,
    /// Frames of a burst on two processors.
    pub burst: u32,
    /// Packets per second that are too many for one processor.
    pub flood: u32,
    /// Packets per second that are not.
    pub offer: u32,
    /// Of one flood, and of one offer.
    pub milliseconds: u64,
    /// Bytes of a mirrored frame.
    pub frame_len: usize,
}

/// What was offered, and what came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figure {
    pub offered: u64,
    pub received: u64,
    /// Of those that were not received: let go by podwire's program, for its receiver had no buffer or was not heard of.
    pub let_go: u64,
    /// Packets per second that were received, a value for each round.
    pub rates: Vec<f64>,
    /// Processor time per packet received in ns: the receiving kernel's, or with the generator's where they share a
    /// processor.
    pub kernel: Vec<f64>,
    /// The same of the thread that receives.
    pub worker: Vec<f64>,
}

/// A row of the result.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    pub name: &'static str,
    /// Kernel and receiver on two processors, as fast as it goes.
    pub burst: Figure,
    /// Both on one, as fast as it goes.
    pub flood: Figure,
    /// Both on one, at the offer.
    pub steady: Figure,
}

/// Who receives.
enum Receiver {
    Own(Own),
    Rival(Rival),
}

impl Receiver {
    fn packets(&self) -> Result<u64> {
        match self {
            Self::Own(own) => Ok(own.packets()),
            Self::Rival(rival) => rival.packets(),
        }
    }

    fn let_go(&self) -> u64 {
        match self {
            Self::Own(own) => own.let_go(),
            Self::Rival(_) => 0,
        }
    }

    fn worker(&mut self) -> Worker {
        match self {
            Self::Own(own) => own.worker(),
            Self::Rival(rival) => rival.worker(),
        }
    }
}

struct Lane {
    cable: Cable,
    frame: Vec<u8>,
    receiver: Receiver,
    kernel: Option<Worker>,
}

pub const OWN: &str = "podwire";
pub const RIVAL: &str = "C, libxdp";

/// Measures.
///
/// # Errors
/// Without root or two processors.
pub fn measure(plan: Plan, rival: Option<&Path>, calm: &mut Calm) -> Result<(Vec<Row>, f64)> {
    let site = Site::new()?;
    let mut lanes = lanes(&site, plan, rival)?;
    let floor_cable = site.lay()?;
    let _floor: Attached = site.drop_at(&floor_cable)?;
    let names = [OWN, RIVAL];
    let mut rows: Vec<Row> =
        names.iter().take(lanes.len()).map(|name| Row { name, ..Row::default() }).collect();
    let mut floor = Vec::new();
    // One round more, which warms up and is not counted.
    for round in 0..=plan.rounds {
        let once = || pace::at_once(&floor_cable.outlet, &lanes[0].frame, plan.burst);
        let sent = calm.run("no AF_XDP", once)?;
        if round > 0 {
            floor.push(sent.work as f64 / sent.frames as f64);
        }
        each(&mut lanes, round, |index, lane| {
            let once = |lane: &Lane| pace::at_once(&lane.cable.outlet, &lane.frame, plan.burst);
            let figure = calm.run(names[index], || lane.run(once))?;
            rows[index].burst.add(figure, round);
            Ok(())
        })?;
    }
    for lane in &mut lanes {
        lane.kernel = Some(site.receive_apart(&lane.cable)?);
    }
    let time = Duration::from_millis(plan.milliseconds);
    for round in 0..=plan.rounds {
        each(&mut lanes, round, |index, lane| {
            let at = |lane: &Lane, rate| pace::at_rate(&lane.cable.outlet, &lane.frame, rate, time);
            let flood = calm.run(names[index], || lane.run(|lane| at(lane, plan.flood)))?;
            rows[index].flood.add(flood, round);
            let steady = calm.run(names[index], || lane.run(|lane| at(lane, plan.offer)))?;
            rows[index].steady.add(steady, round);
            Ok(())
        })?;
    }
    Ok((rows, Spread::of(floor).median))
}

fn lanes(site: &Site, plan: Plan, rival: Option<&Path>) -> Result<Vec<Lane>> {
    let mut lanes = Vec::new();
    for number in 0..1 + usize::from(rival.is_some()) {
        let cable = site.lay()?;
        let receiver = match rival {
            Some(program) if number == 1 => {
                Receiver::Rival(Rival::start(program, &site.to, "rx", &cable.to, 0, RECEIVER)?)
            }
            _ => Receiver::Own(Own::receive(&site.to, &cable.to, RECEIVER)?),
        };
        let frame = frame::vxlan(mac(&site.to, &cable.to)?, [192, 0, 2, 1], [192, 0, 2, 2], plan.frame_len);
        lanes.push(Lane { cable, frame, receiver, kernel: None });
    }
    Ok(lanes)
}

fn each(
    lanes: &mut [Lane],
    round: usize,
    mut work: impl FnMut(usize, &mut Lane) -> Result<()>,
) -> Result<()> {
    let count = lanes.len();
    (0..count).map(|turn| (turn + round) % count).try_for_each(|index| work(index, &mut lanes[index]))
}

/// One run: what was sent, received, and the time of kernel and worker.
struct Run {
    sent: pace::Sent,
    received: u64,
    let_go: u64,
    kernel: u64,
    worker: u64,
}

impl Lane {
    fn run(&mut self, send: impl FnOnce(&Self) -> Result<pace::Sent>) -> Result<Run> {
        let worker = self.receiver.worker();
        let before = (self.receiver.packets()?, worker.time()?, self.kernel_time()?);
        let let_go = self.receiver.let_go();
        let sent = send(self)?;
        self.settle()?;
        Ok(Run {
            received: self.receiver.packets()? - before.0,
            let_go: self.receiver.let_go() - let_go,
            worker: worker.time()? - before.1,
            kernel: if self.kernel.is_some() { self.kernel_time()? - before.2 } else { sent.work },
            sent,
        })
    }

    fn kernel_time(&self) -> Result<u64> {
        self.kernel.map_or(Ok(0), Worker::time)
    }

    /// Waits until nothing comes any more.
    fn settle(&self) -> Result<()> {
        let mut last = None;
        while last != Some(self.receiver.packets()?) {
            last = Some(self.receiver.packets()?);
            std::thread::sleep(Duration::from_millis(30));
        }
        Ok(())
    }
}

impl Figure {
    fn add(&mut self, run: Run, round: usize) {
        if round == 0 {
            return;
        }
        self.offered += run.sent.frames;
        self.received += run.received;
        self.let_go += run.let_go;
        self.rates.push(run.received as f64 / run.sent.time.as_secs_f64());
        self.kernel.push(run.kernel as f64 / run.received as f64);
        self.worker.push(run.worker as f64 / run.received as f64);
    }

    /// Percent of what was offered.
    pub fn lost(&self) -> f64 {
        self.offered.saturating_sub(self.received) as f64 * 100.0 / self.offered.max(1) as f64
    }
}

/// podwire by C, of the same round.
pub fn targets(rows: &[Row], offer: u32) -> Vec<Target> {
    let [own, rival] = rows else { return Vec::new() };
    let ratio =
        |own: &[f64], rival: &[f64]| Spread::of(own.iter().zip(rival).map(|(own, rival)| own / rival));
    let rate = |what: &str, own: &Figure, rival: &Figure| Target {
        what: format!("{OWN} / {RIVAL}: received per second, {what}"),
        ratio: ratio(&own.rates, &rival.rates),
        bound: Some(0.95),
        at_most: false,
    };
    let all = |figure: &Figure| -> Vec<f64> {
        figure.kernel.iter().zip(&figure.worker).map(|(kernel, worker)| kernel + worker).collect()
    };
    vec![
        rate("two processors", &own.burst, &rival.burst),
        rate("one processor", &own.flood, &rival.flood),
        Target {
            what: format!("{OWN} / {RIVAL}: processor time per packet at {offer}/s"),
            ratio: ratio(&all(&own.steady), &all(&rival.steady)),
            bound: Some(1.0 / 0.95),
            at_most: true,
        },
    ]
}
