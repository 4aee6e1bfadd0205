//! Added processor time per packet at a pod's hook, in rounds over all contenders whose order rotates.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::contender::{Contender, NOTHING, Sink};
use crate::scene::{self, Scene, tap};
use podwire_bench::frame;
use podwire_bench::generator::Generator;
use podwire_bench::spread::Spread;

/// What has not come by now is lost, when no counter has moved for so long.
const STILL: Duration = Duration::from_millis(400);
const PATIENCE: Duration = Duration::from_secs(2);
/// The stack counts packets to it and refuses them.
const NOWHERE: [u8; 4] = [127, 0, 0, 1];
const SOURCE: [u8; 4] = [10, 10, 1, 5];

/// How it is measured.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Plan {
    pub rounds: usize,
    /// Frames of one contender in one round.
    pub burst: u32,
    pub frame_len: usize,
}

/// A row of the result.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub name: &'static str,
    pub wants_copies: bool,
    /// ns per packet more than with nothing at the hook.
    pub added: Spread,
    pub offered: u64,
    pub passed: u64,
    pub copies: u64,
    pub copied_bytes: u64,
    /// Bytes that a copy should have, its tunnel's headers included.
    pub copy_len: usize,
    /// ns per packet, a value for each round.
    pub samples: Vec<f64>,
    /// podwire's own books, warming up included: copies wanted, and of these those that went by the ring to user
    /// space, without a clone.
    pub snapshots: Option<(u64, u64)>,
}

impl Row {
    /// What is to be known beside the figures: losses, and snapshots that became clones.
    pub fn remark(&self) -> String {
        let originals = self.offered.saturating_sub(self.passed);
        let copies = if self.wants_copies { self.passed.saturating_sub(self.copies) } else { 0 };
        let loss = match (originals, copies) {
            (0, 0) => "none".to_owned(),
            _ => format!("{originals} originals, {copies} copies"),
        };
        if self.copied_bytes != self.copies * self.copy_len as u64 {
            let len = self.copied_bytes as f64 / self.copies.max(1) as f64;
            return format!("{loss}; WRONG COPIES: {len:.1} bytes each, not {}", self.copy_len);
        }
        match self.snapshots {
            Some((wanted, taken)) if taken > 0 && taken < wanted => {
                format!("{loss}; {} of {wanted} copies were clones, for want of a reader", wanted - taken)
            }
            _ => loss,
        }
    }
}

/// Where things stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing {
    passed: u64,
    copies: u64,
    bytes: u64,
}

impl Standing {
    /// Where things stand when nothing is lost.
    fn after(self, burst: u32) -> Self {
        Self { passed: self.passed + u64::from(burst), copies: self.copies + u64::from(burst), ..self }
    }
}

/// Measures.
///
/// # Errors
/// Without root, or without the tools that a contender needs.
pub fn measure(plan: Plan, contenders: &[Contender]) -> Result<Vec<Row>> {
    let scene = Scene::new(contenders)?;
    let sending = std::thread::scope(|scope| {
        let thread = scope.spawn(|| rounds(plan, contenders, &scene));
        thread.join().map_err(|_| anyhow::anyhow!("the generator panicked"))?
    });
    let mut rows = sending?;
    let base = rows.iter().find(|row| row.name == NOTHING).context("no base")?.samples.clone();
    let counters = scene.podwire.counters()?;
    for (_, target, books) in &counters.sessions {
        let name = contenders
            .iter()
            .zip(&scene.topology.pods)
            .find(|(contender, pod)| scene::target(pod, &contender.way).is_some_and(|own| own == *target));
        let row = name.and_then(|(contender, _)| rows.iter_mut().find(|row| row.name == contender.name));
        if let Some(row) = row {
            row.snapshots = Some((books.matched_packets, books.handed_packets));
        }
    }
    for row in &mut rows {
        row.added = Spread::of(row.samples.iter().zip(&base).map(|(own, base)| own - base));
    }
    Ok(rows)
}

fn rounds(plan: Plan, contenders: &[Contender], scene: &Scene) -> Result<Vec<Row>> {
    let generator = Generator::become_it()?;
    let mut rows: Vec<Row> = contenders
        .iter()
        .map(|contender| Row {
            name: contender.name,
            wants_copies: contender.way.sink() != Sink::None,
            added: Spread::default(),
            offered: 0,
            passed: 0,
            copies: 0,
            copied_bytes: 0,
            copy_len: contender.way.copy_len(plan.frame_len),
            samples: Vec::new(),
            snapshots: None,
        })
        .collect();
    let frames: Vec<Vec<u8>> =
        scene.macs.iter().map(|mac| frame::udp(*mac, SOURCE, NOWHERE, plan.frame_len)).collect();
    // One round more, which warms up and is not counted.
    for round in 0..=plan.rounds {
        for turn in 0..contenders.len() {
            let index = (turn + round) % contenders.len();
            let before = standing(scene, contenders, index)?;
            let time = generator.send(&scene.outlets[index], &frames[index], plan.burst)?;
            let after = settle(scene, contenders, index, before.after(plan.burst))?;
            if round == 0 {
                continue;
            }
            let row = &mut rows[index];
            row.offered += u64::from(plan.burst);
            row.passed += after.passed - before.passed;
            row.copies += after.copies - before.copies;
            row.copied_bytes += after.bytes - before.bytes;
            row.samples.push(time as f64 / f64::from(plan.burst));
        }
    }
    Ok(rows)
}

fn standing(scene: &Scene, contenders: &[Contender], index: usize) -> Result<Standing> {
    let (copies, bytes) = match contenders[index].way.sink() {
        Sink::None => (0, 0),
        Sink::Tap => {
            let out = format!("{}-out", tap(&scene.topology.pods[index]));
            *scene.node_books.received()?.get(&out).context("no tap")?
        }
        Sink::Collector => *scene.collector_books.received()?.get("eth0").context("no eth0")?,
    };
    Ok(Standing { passed: scene.node_books.ip_received()?, copies, bytes })
}

/// Waits until all has arrived, or nothing moves any more.
fn settle(scene: &Scene, contenders: &[Contender], index: usize, whole: Standing) -> Result<Standing> {
    let wants_copies = contenders[index].way.sink() != Sink::None;
    let started = Instant::now();
    let (mut last, mut since) = (standing(scene, contenders, index)?, Instant::now());
    while since.elapsed() < STILL && started.elapsed() < PATIENCE {
        if last.passed >= whole.passed && (last.copies >= whole.copies || !wants_copies) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
        let now = standing(scene, contenders, index)?;
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(last)
}
