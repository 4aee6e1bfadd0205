//! Frames under one set of rules.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

use anyhow::{Context, Result, ensure};
use ipnet::IpNet;
use podwire_datapath::compile::tables::MemoryTables;
use podwire_datapath::compile::{self, EndpointRules, Guarded, Sources, naive};
use podwire_datapath::core::abi::{Direction, Generation, GuardCounters, Reason, SessionKind, SessionRow};
use podwire_datapath::core::stage::copy::{Outcome, Stamp, is_numbered};
use podwire_datapath::core::stage::{self, Beside, Copies, Tables, Tag, Verdict};
use podwire_datapath::core::wire::encap::TunnelKind;
use podwire_datapath::core::wire::encap::{Encapsulation, OuterAddresses, OuterTemplate};
use podwire_datapath::{Allowed, Applied, Desired, Endpoint, Guard, Target};
use podwire_tests::model::copy::copy;
use podwire_tests::model::frame::frame;
use podwire_tests::model::random::Random;

use super::books::Books;
use super::{CPU, Kernel, scene};

/// What a pod's hook returns: on to the next program.
const NEXT: i32 = -1;
/// What the mirror program returns when it has given its frame away.
const DROP: i32 = 2;

/// What was reached; a comparison of nothing proves nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub frames: u64,
    pub matched: u64,
    pub copies: u64,
    pub dressed: u64,
    pub truncated: u64,
    pub lost: u64,
    pub malformed: u64,
    pub refused: u64,
}

impl Tally {
    /// Fails when something that the frames should reach was not reached.
    pub fn check(&self) -> Result<()> {
        let missed = self.frames - self.matched;
        let reached = [
            self.matched,
            missed,
            self.copies,
            self.dressed,
            self.truncated,
            self.lost,
            self.malformed,
            self.refused,
        ];
        ensure!(reached.iter().all(|count| *count > self.frames / 200), "hardly reached: {self:?}");
        Ok(())
    }
}

/// A set of rules in force, and the model of it.
pub struct Round<'a> {
    kernel: &'a Kernel,
    pub desired: Desired,
    rules: Vec<EndpointRules>,
    tables: MemoryTables,
    sessions: BTreeMap<u16, (Target, SessionRow)>,
    /// The next number of each session.
    sequences: BTreeMap<u16, u32>,
    books: Books,
    /// What the model's guards had counted, by slot.
    guards: BTreeMap<u32, GuardCounters>,
}

impl<'a> Round<'a> {
    pub fn new(kernel: &'a Kernel, desired: Desired, applied: &Applied) -> Result<Self> {
        let mut sessions = BTreeMap::new();
        for state in &applied.sessions {
            sessions.insert(state.session as u16, (state.target.clone(), row(&state.target)?));
        }
        let mut tables = MemoryTables::new();
        let mut rules = Vec::new();
        for (endpoint, (_, ifindex)) in desired.endpoints.iter().zip(&kernel.interfaces) {
            let slot = kernel.slot(*ifindex)?;
            tables.set_endpoint_slot(*ifindex, slot);
            rules.push(endpoint_rules(&desired, &endpoint.name, slot, &sessions)?);
        }
        let generation = Generation(applied.generation);
        tables.write(compile::compile(&rules)?.relocate(generation.bank()));
        tables.set_generation(generation);
        tables.set_copy_mark(kernel.copy_mark);
        let books = Books::new(kernel.datapath.counters()?);
        let sequences = sessions
            .keys()
            .map(|session| Ok((*session, kernel.sequence(*session)?)))
            .collect::<Result<_>>()?;
        Ok(Self { kernel, desired, rules, tables, sessions, sequences, books, guards: BTreeMap::new() })
    }

    /// Runs a random frame on both sides.
    pub fn frame(&mut self, random: &mut Random, tally: &mut Tally) -> Result<()> {
        let frame = frame(random);
        let direction = random.pick(&Direction::ALL);
        let mark = random.pick(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 1, self.kernel.copy_mark]);
        let endpoint = random.below(self.kernel.interfaces.len());
        let choice = random.number();
        tally.frames += 1;
        self.compare(&frame, direction, mark, (!choice.is_multiple_of(50)).then_some(endpoint), choice, tally)
            .with_context(|| {
                let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("endpoint {endpoint} {} mark {mark:x} frame {hex}", direction.as_str())
            })
    }

    /// `endpoint`: by number, none for an interface that is no endpoint. `choice` picks the session whose copy
    /// is looked at byte by byte.
    fn compare(
        &mut self,
        frame: &[u8],
        direction: Direction,
        mark: u32,
        endpoint: Option<usize>,
        choice: u64,
        tally: &mut Tally,
    ) -> Result<()> {
        let ifindex = endpoint.map_or(self.kernel.stranger, |number| self.kernel.interfaces[number].1);
        let program = match direction {
            Direction::Egress => &self.kernel.from_pod,
            Direction::Ingress => &self.kernel.to_pod,
        };
        let run = program.run(frame, ifindex, mark, 1)?;
        ensure!(run.frame == frame, "the frame was changed");

        let malformed = self.tables.reason_counter(Reason::Malformed);
        let others = [Reason::Malformed, Reason::CopyOfCopy, Reason::EndpointMissing];
        let before = others.map(|reason| self.tables.reason_counter(reason));
        let beside = Beside { ifindex, mark, tag: Tag::default() };
        let decision = stage::pod(direction, &beside, &frame, &self.tables);
        let verdict = decision.refused.map_or(Verdict::Pass, Verdict::Drop);
        let code = if decision.refused.is_some() { DROP } else { NEXT };
        ensure!(run.code == code, "the hook returned {}, the model {:?}", run.code, decision.refused);
        if let Some(reason) = decision.refused {
            self.books.reason(reason, 1);
            tally.refused += 1;
        }
        for (reason, before) in others.into_iter().zip(before) {
            self.books.reason(reason, self.tables.reason_counter(reason) - before);
        }
        tally.malformed += self.tables.reason_counter(Reason::Malformed) - malformed;
        if let Some(number) = endpoint {
            let name = self.desired.endpoints[number].name.clone();
            let row =
                self.books.endpoints.get_mut(&(name, direction)).context("the endpoint is not counted")?;
            row.record(frame.len() as u32, verdict, decision.copies.slots != 0);
            let (slot, name) = (self.rules[number].slot, &self.desired.endpoints[number].name);
            let after = self.tables.guard_counters(slot).context("no guard counters")?;
            let sum = self.books.guards.get_mut(name).context("the guard is not counted")?;
            for index in 0..GuardCounters::REASONS {
                let before = self.guards.get(&slot).copied().unwrap_or_default();
                sum.dropped_packets[index] += after.dropped_packets[index] - before.dropped_packets[index];
                sum.observed_packets[index] += after.observed_packets[index] - before.observed_packets[index];
            }
            self.guards.insert(slot, after);
        }
        let wanted = self.wanted(&decision.copies)?;
        ensure!(wanted == self.naive(endpoint, direction, mark, frame), "the tables say {wanted:?}");
        for session in &wanted {
            self.book(frame, &decision.copies, *session, tally)?;
        }
        self.books.agree(&Books::new(self.kernel.datapath.counters()?))?;
        tally.matched += u64::from(!wanted.is_empty());
        self.dress(frame, &decision.copies, choice, tally)
    }

    /// The sessions that the model's tables name.
    fn wanted(&self, copies: &Copies) -> Result<BTreeSet<u16>> {
        if copies.slots == 0 {
            return Ok(BTreeSet::new());
        }
        let ruleset = self.tables.ruleset(copies.ruleset).context("no rule set")?;
        Ok((0..64).filter(|slot| copies.slots >> slot & 1 != 0).map(|slot| ruleset.sessions[slot]).collect())
    }

    /// The sessions that the rules name when they are read one by one.
    fn naive(&self, endpoint: Option<usize>, direction: Direction, mark: u32, frame: &[u8]) -> BTreeSet<u16> {
        let Some(number) = endpoint.filter(|_| mark != self.kernel.copy_mark) else {
            return BTreeSet::new();
        };
        let mirrors = match direction {
            Direction::Ingress => &self.rules[number].ingress,
            Direction::Egress => &self.rules[number].egress,
        };
        naive::sessions(mirrors, direction, &stage::parse(&frame))
    }

    /// Books a copy as the model says.
    fn book(
        &mut self,
        frame: &[u8],
        copies: &Copies,
        session: u16,
        tally: &mut Tally,
    ) -> Result<Option<Vec<u8>>> {
        let (target, row) = self.sessions.get(&session).context("a session that was not applied")?;
        let counters = self.books.sessions.get_mut(&u32::from(session)).context("it is not counted")?;
        counters.matched(frame.len() as u32);
        let ip_id = (counters.matched_packets as u16).wrapping_add(CPU << 13);
        let sequence = self.sequences.entry(session).or_default();
        let stamp = Stamp { ip_id, sequence: *sequence, ..Stamp::default() };
        let (outcome, dressed) = copy(frame, &copies.row(copies.slots), row, &scene::path(target), &stamp)?;
        if is_numbered(&row.template) && matches!(outcome, Outcome::Sent { .. }) {
            *sequence += 1;
        }
        counters.record(&outcome);
        tally.copies += 1;
        match outcome {
            Outcome::Sent { truncated, .. } | Outcome::Queued { truncated } => {
                tally.truncated += u64::from(truncated);
            }
            Outcome::Handed => {}
            Outcome::Lost(reason) => {
                tally.lost += 1;
                self.books.reason(reason, 1);
            }
        }
        Ok(dressed)
    }

    /// Takes the time out of ERSPAN III on both sides, after a look at whether it is this moment.
    fn take_time(&self, session: u16, kernel: &mut [u8], model: &mut [u8]) -> Result<()> {
        let (_, row) = self.sessions.get(&session).context("a session that was not applied")?;
        if row.template.kind != TunnelKind::ErspanIII as u32 {
            return Ok(());
        }
        // Ethernet, outer IP, GRE with a sequence number, and ERSPAN's first four bytes.
        let at = 14 + usize::from(row.template.transport_offset) + 8 + 4;
        let stamp = u32::from_be_bytes(kernel[at..at + 4].try_into()?);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        let age = ((now.as_nanos() / 100_000) as u32).wrapping_sub(stamp);
        ensure!(age < 100_000, "the timestamp {stamp} is {age} units of 100 us old");
        kernel[at..at + 4].fill(0);
        model[at..at + 4].fill(0);
        Ok(())
    }

    /// Runs the mirror program by itself for one of the sessions and looks at what it sends.
    fn dress(&mut self, frame: &[u8], copies: &Copies, choice: u64, tally: &mut Tally) -> Result<()> {
        let slots: Vec<u32> = (0..64).filter(|slot| copies.slots >> slot & 1 != 0).collect();
        if slots.is_empty() {
            return Ok(());
        }
        let slot = slots[choice as usize % slots.len()];
        let copies = Copies { slots: 1 << slot, ..*copies };
        let session = self.tables.ruleset(copies.ruleset).context("no rule set")?.sessions[slot as usize];
        self.kernel.announce(&copies.row(copies.slots))?;
        let run = self.kernel.mirror.run(frame, self.kernel.mirror_ifindex, 0, 1)?;
        ensure!(run.code == DROP, "the mirror program returned {}", run.code);
        let dressed = self.book(frame, &copies, session, tally)?;
        self.books.agree(&Books::new(self.kernel.datapath.counters()?))?;
        if let Some(mut dressed) = dressed {
            let mut run = run;
            self.take_time(session, &mut run.frame, &mut dressed)?;
            let target = &self.sessions[&session].0;
            let differs = run.frame.iter().zip(&dressed).position(|(left, right)| left != right);
            ensure!(
                run.frame == dressed,
                "{target}: {} bytes instead of {}, the first wrong one at {differs:?}\nkernel {:02x?}\nmodel  {:02x?}",
                run.frame.len(),
                dressed.len(),
                &run.frame[..run.frame.len().min(120)],
                &dressed[..dressed.len().min(120)],
            );
            tally.dressed += 1;
        }
        Ok(())
    }
}

/// A session's row by the model.
fn row(target: &Target) -> Result<SessionRow> {
    let Target::Tunnel { remote, tunnel } = target else {
        return Ok(SessionRow { kind: SessionKind::Device as u32, ..SessionRow::FREE });
    };
    let local: IpAddr = scene::local(target).context("no local address")?.parse()?;
    let addresses = OuterAddresses::new(local, *remote).context("two families")?;
    let template = OuterTemplate::new(&Encapsulation::new(addresses, *tunnel))
        .map_err(|error| anyhow::anyhow!("{target}: {error}"))?;
    Ok(SessionRow { kind: SessionKind::Tunnel as u32, template, ..SessionRow::FREE })
}

/// The sources that are an endpoint's own, as its fields say it.
fn sources(endpoint: &Endpoint) -> Sources {
    let guard = match endpoint.guard {
        Guard::Off => None,
        Guard::Observe => Some(Guarded::Observed),
        Guard::Enforce => Some(Guarded::Dropped),
    };
    let mut sources = Sources { guard, ..Sources::default() };
    sources.macs.extend(endpoint.mac);
    sources.prefixes.extend(endpoint.ips.iter().map(|address| IpNet::from(*address)));
    for allowed in &endpoint.allowed {
        match allowed {
            Allowed::Prefix(prefix) => sources.prefixes.push(*prefix),
            Allowed::Mac(mac) => sources.macs.push(*mac),
        }
    }
    for [a, b, c, d, e, f] in sources.macs.clone() {
        let identifier = [a ^ 2, b, c, 0xff, 0xfe, d, e, f];
        let link_local = 0xfe80 << 112 | u128::from(u64::from_be_bytes(identifier));
        sources.prefixes.push(IpNet::from(IpAddr::from(Ipv6Addr::from(link_local))));
    }
    sources
}

fn endpoint_rules(
    desired: &Desired,
    name: &str,
    slot: u32,
    sessions: &BTreeMap<u16, (Target, SessionRow)>,
) -> Result<EndpointRules> {
    let endpoint = desired.endpoints.iter().find(|endpoint| endpoint.name == name).context("no endpoint")?;
    let mut rules = EndpointRules { slot, sources: Some(sources(endpoint)), ..EndpointRules::default() };
    for mirror in desired.mirrors.iter().filter(|mirror| mirror.endpoints.iter().any(|other| other == name)) {
        let (session, _) = sessions
            .iter()
            .find(|(_, (target, _))| *target == mirror.target)
            .with_context(|| format!("{} has no session", mirror.target))?;
        let compiled = compile::Policy::mirror(*session, mirror.rules.clone());
        if mirror.directions.contains(&Direction::Ingress) {
            rules.ingress.push(compiled.clone());
        }
        if mirror.directions.contains(&Direction::Egress) {
            rules.egress.push(compiled);
        }
    }
    Ok(rules)
}
