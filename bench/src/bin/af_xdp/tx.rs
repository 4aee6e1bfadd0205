//! Frames sent from one processor and dropped by an XDP program at the other end of a veth pair: podwire, C by
//! libxdp, and C by sendmmsg(2) on a packet socket.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use podwire_bench::books::Books;
use podwire_bench::calm::Calm;
use podwire_bench::frame;
use podwire_bench::kernel::Attached;
use podwire_bench::spread::Spread;
use podwire_bench::target::Target;
use serde::Serialize;

use crate::own::Own;
use crate::rival::Rival;
use crate::rx::{OWN, RIVAL};
use crate::site::{Cable, RECEIVER, Site, Worker};

/// How it is measured.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Plan {
    pub rounds: usize,
    /// Of one run.
    pub milliseconds: u64,
    /// Bytes of a frame.
    pub frame_len: usize,
}

/// A row of the result.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub name: &'static str,
    /// Packets per second that reached the other end, a value for each round.
    pub rates: Vec<f64>,
    /// Processor time per packet in ns, all of it: the kernel works in the sender's calls.
    pub work: Vec<f64>,
}

enum Sender {
    Own(Own),
    Rival(Rival),
}

impl Sender {
    fn go(&self, on: bool) -> Result<()> {
        match self {
            Self::Own(own) => {
                own.go(on);
                Ok(())
            }
            Self::Rival(rival) => rival.go(on),
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
    name: &'static str,
    cable: Cable,
    sender: Sender,
    _drop: Attached,
}

const PACKETS: &str = "C, sendmmsg on a packet socket";

/// Measures.
///
/// # Errors
/// Without root or two processors.
pub fn measure(plan: Plan, rival: Option<&Path>, calm: &mut Calm) -> Result<Vec<Row>> {
    let site = Site::new()?;
    let books = Books::open(&site.to)?;
    let mut lanes = lanes(&site, plan, rival)?;
    let mut rows: Vec<Row> =
        lanes.iter().map(|lane| Row { name: lane.name, rates: Vec::new(), work: Vec::new() }).collect();
    for round in 0..=plan.rounds {
        for turn in 0..lanes.len() {
            let index = (turn + round) % lanes.len();
            let lane = &mut lanes[index];
            let arrived = |lane: &Lane| -> Result<u64> {
                Ok(books.received()?.get(&lane.cable.to).context("no interface")?.0)
            };
            let (rate, work) = calm.run(lane.name, || {
                let worker = lane.sender.worker();
                let (before, work, start) = (arrived(lane)?, worker.time()?, Instant::now());
                lane.sender.go(true)?;
                std::thread::sleep(Duration::from_millis(plan.milliseconds));
                let (packets, time) = (arrived(lane)? - before, start.elapsed());
                lane.sender.go(false)?;
                std::thread::sleep(Duration::from_millis(20));
                let (all, work) = (arrived(lane)? - before, worker.time()? - work);
                Ok((packets as f64 / time.as_secs_f64(), work as f64 / all as f64))
            })?;
            // The first round warms up.
            if round > 0 {
                rows[index].rates.push(rate);
                rows[index].work.push(work);
            }
        }
    }
    Ok(rows)
}

fn lanes(site: &Site, plan: Plan, rival: Option<&Path>) -> Result<Vec<Lane>> {
    let mut lanes = Vec::new();
    for name in [OWN, RIVAL, PACKETS] {
        let cable = site.lay()?;
        let sender = match (rival, name) {
            (_, OWN) => {
                let frame = frame::udp([0xff; 6], [10, 10, 1, 5], [10, 10, 1, 6], plan.frame_len);
                Sender::Own(Own::send(site.from(), &cable.from, frame, RECEIVER)?)
            }
            (Some(program), _) => {
                let mode = if name == RIVAL { "tx" } else { "packets" };
                let (netns, bytes) = (site.from(), plan.frame_len);
                Sender::Rival(Rival::start(program, netns, mode, &cable.from, bytes, RECEIVER)?)
            }
            (None, _) => continue,
        };
        let _drop = site.drop_at(&cable)?;
        lanes.push(Lane { name, cable, sender, _drop });
    }
    Ok(lanes)
}

/// podwire by the others, of the same round.
pub fn targets(rows: &[Row]) -> Vec<Target> {
    let Some((own, rivals)) = rows.split_first() else { return Vec::new() };
    rivals
        .iter()
        .map(|rival| Target {
            what: format!("{OWN} / {}: sent per second", rival.name),
            ratio: Spread::of(own.rates.iter().zip(&rival.rates).map(|(own, rival)| own / rival)),
            bound: Some(if rival.name == RIVAL { 0.95 } else { 2.0 }),
            at_most: false,
        })
        .collect()
}
