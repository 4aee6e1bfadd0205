//! What the compiler can refuse: only that something does not fit.

use podwire_core::abi::limits;

/// What has a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Table {
    /// Slot numbers of endpoints.
    Endpoints,
    /// Entries of the input with one slot number.
    EndpointEntries,
    /// Distinct rule sets.
    Rulesets,
    /// Trie nodes.
    Nodes,
    /// Trie tails.
    Prefixes,
    /// Chunks of 512 rule bits.
    Chunks,
    /// Rows that assign policies to rule bits.
    Spans,
    /// Session numbers.
    Sessions,
    /// Policy numbers.
    Policies,
    /// Policies of one endpoint.
    EndpointPolicies,
    /// Rule bits of one endpoint and direction; a rule takes one, with ports on either side two, and each
    /// policy's share is rounded up to 64.
    RulesetBits,
}

impl Table {
    /// The word that users read.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Endpoints => "endpoint slots",
            Self::EndpointEntries => "entries per endpoint slot",
            Self::Rulesets => "rule sets",
            Self::Nodes => "trie nodes",
            Self::Prefixes => "prefixes",
            Self::Chunks => "rule bit chunks",
            Self::Spans => "policy spans",
            Self::Sessions => "sessions",
            Self::Policies => "policies",
            Self::EndpointPolicies => "policies per endpoint",
            Self::RulesetBits => "rule bits per endpoint and direction",
        }
    }

    /// How many there can be, in one bank.
    pub const fn allowed(self) -> u32 {
        match self {
            Self::Endpoints => limits::ENDPOINTS,
            Self::EndpointEntries => 1,
            Self::Rulesets => limits::RULESETS,
            Self::Nodes => limits::NODES,
            Self::Prefixes => limits::PREFIXES,
            Self::Chunks => limits::CHUNKS - limits::RULESET_CHUNKS,
            Self::Spans => limits::SPANS,
            Self::Sessions => limits::SESSIONS,
            Self::Policies => limits::POLICIES,
            Self::EndpointPolicies => limits::RULESET_POLICIES as u32,
            Self::RulesetBits => limits::RULESET_CHUNKS * 512,
        }
    }
}

/// The rules do not fit the tables. Nothing was produced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: at least {needed} needed, {allowed} allowed{}", table.as_str(), at(*endpoint))]
pub struct CompileError {
    /// What is too small.
    pub table: Table,
    /// How many are needed at least: counting stops where the compiler does.
    pub needed: u32,
    /// How many there can be.
    pub allowed: u32,
    /// Slot of the endpoint whose rules were being compiled; `None` where it is about all of them.
    pub endpoint: Option<u32>,
}

fn at(endpoint: Option<u32>) -> String {
    endpoint.map_or_else(String::new, |slot| format!(" (endpoint slot {slot})"))
}

/// Checks a number against a table's size.
pub(super) fn fits(table: Table, needed: usize, endpoint: Option<u32>) -> Result<(), CompileError> {
    let needed = u32::try_from(needed).unwrap_or(u32::MAX);
    let allowed = table.allowed();
    if needed <= allowed { Ok(()) } else { Err(CompileError { table, needed, allowed, endpoint }) }
}
