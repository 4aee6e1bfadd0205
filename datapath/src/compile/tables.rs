//! The maps in memory: what [`BankTables`] say, looked up as the kernel looks it up.
//!
//! With it the stages of [`podwire_core::stage`] run in user space on the very rows that the kernel would
//! have. The differential test, the fuzz targets and the compiler's own tests do so.

use std::cell::RefCell;
use std::collections::HashMap;

use podwire_core::abi::{
    CHUNK_WORDS, ChunkRow, Direction, EndpointCounters, Entry, Generation, PrefixRow, Reason, RulesetRow,
    SessionCounters, SessionRow, SpanRow, limits,
};
use podwire_core::stage::{Counters, Tables};

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
    endpoint_counters: RefCell<Vec<EndpointCounters>>,
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
            endpoint_counters: RefCell::new(vec![
                EndpointCounters::default();
                2 * limits::ENDPOINTS as usize
            ]),
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

    /// The counters of an endpoint and direction.
    pub fn endpoint_counters(&self, slot: u32, direction: Direction) -> Option<EndpointCounters> {
        self.endpoint_counters.borrow().get(counter_index(slot, direction)).copied()
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

    fn endpoint_ruleset(&self, generation: Generation, slot: u32, direction: Direction) -> Option<u32> {
        let tables = self.banks[generation.bank() as usize].as_ref()?;
        tables.endpoints.rows.get(slot as usize)?.rulesets[direction as usize].checked_sub(1)
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

    fn session(&self, generation: Generation, session: u32) -> Option<&SessionRow> {
        self.sessions[generation.bank() as usize].get(&session)
    }
}

impl Counters for MemoryTables {
    fn count_endpoint(&self, slot: u32, direction: Direction, change: impl FnOnce(&mut EndpointCounters)) {
        if let Some(row) = self.endpoint_counters.borrow_mut().get_mut(counter_index(slot, direction)) {
            change(row);
        }
    }

    fn count_session(&self, session: u32, change: impl FnOnce(&mut SessionCounters)) {
        if let Some(row) = self.session_counters.borrow_mut().get_mut(session as usize) {
            change(row);
        }
    }

    fn count_reason(&self, reason: Reason) {
        self.reason_counters.borrow_mut()[reason.index()] += 1;
    }
}
