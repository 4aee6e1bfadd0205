//! The maps in memory: what [`BankTables`] say, looked up as the kernel looks it up.
//!
//! With it the stages of [`podwire_core::stage`] run in user space on the very rows that the kernel would
//! have. The differential test, the fuzz targets and the compiler's own tests do so.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use podwire_core::abi::{
    CHUNK_WORDS, ChunkRow, Direction, EgressCounters, EgressRow, EndpointCounters, EndpointRow, Entry,
    FlowKey, FlowRow, Generation, GuardCounters, Liveness, NetworkRow, PolicyCounters, PolicyRow, PrefixRow,
    Reason, RulesetRow, SessionCounters, SessionRow, SpanRow, TargetRow, TripKey, TripRow, limits,
};
use podwire_core::stage::{Counters, State, Tables};

use super::image::{BankTables, Section};

/// The maps of one node.
///
/// Rows that were never written are absent here, while the kernel's are zero; the stages treat both alike.
#[derive(Clone, Debug)]
pub struct MemoryTables {
    generation: Generation,
    copy_mark: u32,
    slots: HashMap<u32, u32>,
    banks: [Option<BankTables>; 2],
    sessions: [HashMap<u32, SessionRow>; 2],
    policies: [HashMap<u32, PolicyRow>; 2],
    now: Cell<u64>,
    flows: RefCell<HashMap<FlowKey, FlowRow>>,
    flow_room: usize,
    trips: RefCell<HashMap<TripKey, TripRow>>,
    paces: RefCell<HashMap<u32, u64>>,
    policy_counters: RefCell<Vec<PolicyCounters>>,
    endpoint_counters: RefCell<Vec<EndpointCounters>>,
    networks: [Option<NetworkRow>; 2],
    targets: HashMap<u32, TargetRow>,
    egresses: [HashMap<u32, EgressRow>; 2],
    egress_ids: HashMap<u32, u32>,
    egress_counters: RefCell<Vec<EgressCounters>>,
    guard_counters: RefCell<Vec<GuardCounters>>,
    session_counters: RefCell<Vec<SessionCounters>>,
    reason_counters: RefCell<[u64; Reason::COUNT]>,
}

impl Default for MemoryTables {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryTables {
    /// Empty maps: generation 0, no interfaces, no rules, no sessions.
    pub fn new() -> Self {
        Self {
            generation: Generation(0),
            copy_mark: 0,
            slots: HashMap::new(),
            banks: [None, None],
            sessions: [HashMap::new(), HashMap::new()],
            policies: [HashMap::new(), HashMap::new()],
            now: Cell::new(0),
            flows: RefCell::default(),
            flow_room: limits::FLOWS as usize,
            trips: RefCell::default(),
            paces: RefCell::default(),
            policy_counters: RefCell::new(vec![PolicyCounters::default(); limits::POLICIES as usize]),
            endpoint_counters: RefCell::new(vec![
                EndpointCounters::default();
                2 * limits::ENDPOINTS as usize
            ]),
            networks: [None, None],
            targets: HashMap::new(),
            egresses: [HashMap::new(), HashMap::new()],
            egress_ids: HashMap::new(),
            egress_counters: RefCell::new(vec![EgressCounters::default(); limits::EGRESSES as usize]),
            guard_counters: RefCell::new(vec![GuardCounters::default(); limits::ENDPOINTS as usize]),
            session_counters: RefCell::new(vec![SessionCounters::default(); limits::SESSIONS as usize]),
            reason_counters: RefCell::new([0; Reason::COUNT]),
        }
    }

    /// Replaces what the tables' bank holds, except for its sessions.
    pub fn write(&mut self, tables: BankTables) {
        let bank = tables.bank as usize & 1;
        self.banks[bank] = Some(tables);
    }

    /// Puts a generation in force.
    pub fn set_generation(&mut self, generation: Generation) {
        self.generation = generation;
    }

    /// Sets the `skb->mark` of copies; 0 for none.
    pub fn set_copy_mark(&mut self, mark: u32) {
        self.copy_mark = mark;
    }

    /// Makes `slot` the endpoint behind the interface.
    pub fn set_endpoint_slot(&mut self, ifindex: u32, slot: u32) {
        self.slots.insert(ifindex, slot);
    }

    /// Writes or, with `None`, removes a session in a bank, 0 or 1.
    pub fn set_session(&mut self, bank: u32, session: u32, row: Option<SessionRow>) {
        let sessions = &mut self.sessions[bank as usize & 1];
        match row {
            Some(row) if session < limits::SESSIONS => sessions.insert(session, row),
            _ => sessions.remove(&session),
        };
    }

    /// Writes a policy in a bank, 0 or 1.
    pub fn set_policy(&mut self, bank: u32, policy: u32, row: PolicyRow) {
        self.policies[bank as usize & 1].insert(policy, row);
    }

    /// Sets the monotonic clock, in nanoseconds.
    pub fn set_now(&self, now: u64) {
        self.now.set(now);
    }

    /// Bounds the connections that are kept.
    pub fn set_flow_room(&mut self, room: usize) {
        self.flow_room = room;
    }

    /// Writes a flow that is away.
    pub fn set_trip(&mut self, key: TripKey, row: TripRow) {
        self.trips.borrow_mut().insert(key, row);
    }

    /// The counters of a policy.
    pub fn policy_counters(&self, policy: u32) -> Option<PolicyCounters> {
        self.policy_counters.borrow().get(policy as usize).copied()
    }

    /// The counters of an endpoint and direction.
    pub fn endpoint_counters(&self, slot: u32, direction: Direction) -> Option<EndpointCounters> {
        self.endpoint_counters.borrow().get(counter_index(slot, direction)).copied()
    }

    /// Writes the network of a bank, 0 or 1.
    pub fn set_network(&mut self, bank: u32, row: NetworkRow) {
        self.networks[bank as usize & 1] = Some(row);
    }

    /// Writes a destination by absolute index.
    pub fn set_target(&mut self, index: u32, row: TargetRow) {
        self.targets.insert(index, row);
    }

    /// Writes an Egress policy in a bank, 0 or 1, which other nodes know by the row's number.
    pub fn set_egress(&mut self, bank: u32, policy: u32, row: EgressRow) {
        self.egresses[bank as usize & 1].insert(policy, row);
        self.egress_ids.insert(row.id, policy);
    }

    /// What an Egress policy did.
    pub fn egress_counters(&self, policy: u32) -> Option<EgressCounters> {
        self.egress_counters.borrow().get(policy as usize).copied()
    }

    /// What the guard counted of an endpoint.
    pub fn guard_counters(&self, slot: u32) -> Option<GuardCounters> {
        self.guard_counters.borrow().get(slot as usize).copied()
    }

    /// The counters of a session.
    pub fn session_counters(&self, session: u32) -> Option<SessionCounters> {
        self.session_counters.borrow().get(session as usize).copied()
    }

    /// Packets counted under a reason.
    pub fn reason_counter(&self, reason: Reason) -> u64 {
        self.reason_counters.borrow()[reason.index()]
    }

    /// A row of whichever bank has it; the banks' indexes do not overlap.
    fn row<T>(&self, index: u32, section: impl Fn(&BankTables) -> &Section<T>) -> Option<&T> {
        self.banks.iter().flatten().find_map(|tables| section(tables).get(index))
    }
}

/// As map `ENDPOINT_COUNTERS` counts.
fn counter_index(slot: u32, direction: Direction) -> usize {
    slot as usize * 2 + direction.index() as usize
}

impl Tables for MemoryTables {
    fn generation(&self) -> Generation {
        self.generation
    }

    fn copy_mark(&self) -> u32 {
        self.copy_mark
    }

    fn endpoint_slot(&self, ifindex: u32) -> Option<u32> {
        self.slots.get(&ifindex).copied()
    }

    fn endpoint(&self, generation: Generation, slot: u32) -> Option<&EndpointRow> {
        self.banks[generation.bank() as usize].as_ref()?.endpoints.rows.get(slot as usize)
    }

    fn ruleset(&self, index: u32) -> Option<&RulesetRow> {
        self.row(index, |tables| &tables.rulesets)
    }

    fn node(&self, index: u32, byte: u8) -> Option<Entry> {
        self.row(index, |tables| &tables.nodes).map(|node| Entry(node[usize::from(byte)]))
    }

    fn prefix(&self, index: u32) -> Option<&PrefixRow> {
        self.row(index, |tables| &tables.prefixes)
    }

    fn chunk(&self, index: u32) -> Option<&ChunkRow> {
        const EMPTY: ChunkRow = [0; CHUNK_WORDS];
        if index < limits::RULESET_CHUNKS {
            return Some(&EMPTY);
        }
        self.row(index, |tables| &tables.chunks)
    }

    fn span(&self, index: u32) -> Option<&SpanRow> {
        self.row(index, |tables| &tables.spans)
    }

    fn policy(&self, generation: Generation, policy: u32) -> Option<&PolicyRow> {
        self.policies[generation.bank() as usize].get(&policy)
    }

    fn network(&self, generation: Generation) -> Option<&NetworkRow> {
        self.networks[generation.bank() as usize].as_ref()
    }

    fn target(&self, index: u32) -> Option<&TargetRow> {
        self.targets.get(&index)
    }

    fn egress(&self, generation: Generation, policy: u32) -> Option<&EgressRow> {
        self.egresses[generation.bank() as usize].get(&policy)
    }

    fn egress_id(&self, id: u32) -> Option<u32> {
        self.egress_ids.get(&id).copied()
    }

    fn session(&self, generation: Generation, session: u32) -> Option<&SessionRow> {
        self.sessions[generation.bank() as usize].get(&session)
    }

    fn live(&self, _: u32) -> u32 {
        Liveness::Live as u32
    }
}

impl State for MemoryTables {
    fn now(&self) -> u64 {
        self.now.get()
    }

    fn flow(&self, key: &FlowKey) -> Option<FlowRow> {
        self.flows.borrow().get(key).copied()
    }

    fn touch_flow(&self, key: &FlowKey, row: &FlowRow) {
        self.flows.borrow_mut().insert(*key, *row);
    }

    fn open_flow(&self, key: &FlowKey, row: &FlowRow) -> bool {
        let mut flows = self.flows.borrow_mut();
        let room = flows.len() < self.flow_room || flows.contains_key(key);
        if room {
            flows.insert(*key, *row);
        }
        room
    }

    fn trip(&self, key: &TripKey) -> Option<TripRow> {
        self.trips.borrow().get(key).copied()
    }

    fn take_probe(&self, _: u32) -> bool {
        false
    }

    fn pace(&self, session: u32, interval: u64, burst: u64, now: u64) -> bool {
        let mut paces = self.paces.borrow_mut();
        let due = paces.entry(session).or_default();
        if *due > now + burst {
            return false;
        }
        *due = (*due).max(now) + interval;
        true
    }
}

impl Counters for MemoryTables {
    fn count_endpoint(&self, slot: u32, direction: Direction, change: impl FnOnce(&mut EndpointCounters)) {
        if let Some(row) = self.endpoint_counters.borrow_mut().get_mut(counter_index(slot, direction)) {
            change(row);
        }
    }

    fn count_egress(&self, policy: u32, change: impl FnOnce(&mut EgressCounters)) {
        if let Some(row) = self.egress_counters.borrow_mut().get_mut(policy as usize) {
            change(row);
        }
    }

    fn count_guard(&self, slot: u32, change: impl FnOnce(&mut GuardCounters)) {
        if let Some(row) = self.guard_counters.borrow_mut().get_mut(slot as usize) {
            change(row);
        }
    }

    fn count_session(&self, session: u32, change: impl FnOnce(&mut SessionCounters)) {
        if let Some(row) = self.session_counters.borrow_mut().get_mut(session as usize) {
            change(row);
        }
    }

    fn count_policy(&self, policy: u32, change: impl FnOnce(&mut PolicyCounters)) {
        if let Some(row) = self.policy_counters.borrow_mut().get_mut(policy as usize) {
            change(row);
        }
    }

    fn count_reason(&self, reason: Reason) {
        self.reason_counters.borrow_mut()[reason.index()] += 1;
    }
}
