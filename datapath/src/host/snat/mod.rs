//! Egress by source address. In: an address per mark, and what to hold back. Out: nftables' table `inet podwire`.
//!
//! ```text
//!  forward       marked, of no connection that conntrack knows or would begin ─► stray, drop: nat does not see it
//!                pod that podwire does not know yet, on its way out of the cluster ─► held, drop
//!  postrouting   mark 0, or "judged, no policy"  ─► others decide
//!                mark in map snat4 / snat6       ─► snat to its address
//!                any other mark                  ─► unknown, drop: never out with another address
//! ```
//!
//! A nat chain sees only the first packet of a connection; the rest follows what conntrack remembers. So flows of
//! an address that is taken from a mark are made to be forgotten. The chain comes before the usual place of
//! source NAT: a connection is translated once, and no masquerade of others wins.

mod script;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::IpAddr;
use std::process::{Command, Stdio};

use ipnet::IpNet;
use serde_json::Value;

use crate::error::{Context, Error, ErrorKind};
use crate::host::conntrack;

/// What Egress needs of nftables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    /// Bits of the packet mark that are podwire's.
    pub(crate) mask: u32,
    /// Mark in place of packets that were judged and have no policy.
    pub(crate) judged: u32,
    /// Source address by mark in place.
    pub(crate) addresses: BTreeMap<u32, IpAddr>,
    /// The node's pod CIDRs: what comes from there unmarked does not leave the cluster.
    pub(crate) hold: Vec<IpNet>,
    /// What belongs to the cluster.
    pub(crate) inside: Vec<IpNet>,
}

impl Wish {
    fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.hold.is_empty()
    }
}

/// Packets that were dropped since the table was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// From pods that podwire does not know yet.
    pub(crate) held: u64,
    /// Marked for a policy that has no address here, or of no connection that could be translated.
    pub(crate) unknown: u64,
}

/// What is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Table {
    /// The kernel's number of the table: another one is another table.
    handle: u64,
    /// What all but the maps' elements was made from.
    frame: String,
    addresses: BTreeMap<u32, IpAddr>,
}

/// The table, and what is known of it.
#[derive(Debug, Default)]
pub(crate) struct Snat {
    table: Option<Table>,
    /// Whether it was looked for.
    looked: bool,
}

impl Snat {
    /// Makes the wish so, in one transaction. Without a wish there is no table, and nft need not be installed.
    ///
    /// # Errors
    /// nft is missing or refuses.
    pub(crate) fn apply(&mut self, wish: &Wish) -> Result<(), Error> {
        if wish.is_empty() {
            return self.remove();
        }
        self.look()?;
        let frame = script::frame(wish);
        let old = self.table.as_ref();
        let text = match old {
            Some(table) if table.frame == frame && table.addresses == wish.addresses => return Ok(()),
            Some(table) if table.frame == frame => script::difference(&table.addresses, &wish.addresses),
            _ => script::whole(wish, &frame),
        };
        let lost = old.map(|table| lost(&table.addresses, &wish.addresses)).unwrap_or_default();
        run(&text)?;
        self.table = handle()?.map(|handle| Table { handle, frame, addresses: wish.addresses.clone() });
        forget(&lost);
        Ok(())
    }

    /// Whether packets with this mark get that address, as far as is known.
    pub(crate) fn translates(&self, mark: u32, address: IpAddr) -> bool {
        self.table.as_ref().is_some_and(|table| table.addresses.get(&mark) == Some(&address))
    }

    /// Takes the table away.
    ///
    /// # Errors
    /// nft refuses.
    pub(crate) fn remove(&mut self) -> Result<(), Error> {
        if self.looked && self.table.is_none() {
            return Ok(());
        }
        if !installed() {
            self.looked = true;
            return Ok(());
        }
        self.look()?;
        if let Some(table) = &self.table {
            run(script::REMOVE)?;
            forget(&lost(&table.addresses, &BTreeMap::new()));
        }
        self.table = None;
        Ok(())
    }

    /// What was dropped; nothing without a table.
    ///
    /// # Errors
    /// nft refuses.
    pub(crate) fn counters(&self) -> Result<Counters, Error> {
        if self.table.is_none() {
            return Ok(Counters::default());
        }
        let answer = list(&["counters", "table", "inet", script::TABLE])?;
        let packets = |name: &str| {
            objects(&answer, "counter")
                .find(|counter| counter["name"] == name)
                .map(|counter| &counter["packets"])
        };
        let read = |name| packets(name).and_then(Value::as_u64).unwrap_or_default();
        let unknown = read(script::UNKNOWN) + read(script::STRAY);
        Ok(Counters { held: read(script::HELD), unknown })
    }

    /// Learns what is there: what an earlier process left, and whether somebody took the table away.
    fn look(&mut self) -> Result<(), Error> {
        self.looked = true;
        let present = handle()?;
        if present == self.table.as_ref().map(|table| table.handle) {
            return Ok(());
        }
        self.table = match present {
            Some(handle) => Some(script::read(handle, &list(&["table", "inet", script::TABLE])?)),
            None => None,
        };
        Ok(())
    }
}

/// Addresses that a mark had and has no more.
fn lost(old: &BTreeMap<u32, IpAddr>, new: &BTreeMap<u32, IpAddr>) -> BTreeSet<IpAddr> {
    old.iter().filter(|(mark, address)| new.get(mark) != Some(address)).map(|(_, address)| *address).collect()
}

fn forget(addresses: &BTreeSet<IpAddr>) {
    if addresses.is_empty() {
        return;
    }
    match conntrack::forget_translations(addresses) {
        Ok(flows) => tracing::debug!(flows, "flows of addresses that went were forgotten"),
        Err(error) => tracing::warn!(%error, "live flows keep the address that went until they end"),
    }
}

/// Number of podwire's table, if it is there.
fn handle() -> Result<Option<u64>, Error> {
    let answer = list(&["tables", "inet"])?;
    let mut tables = objects(&answer, "table");
    Ok(tables.find(|table| table["name"] == script::TABLE).and_then(|table| table["handle"].as_u64()))
}

fn objects<'a>(answer: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    answer["nftables"].as_array().into_iter().flatten().filter_map(move |object| object.get(kind))
}

fn list(what: &[&str]) -> Result<Value, Error> {
    let words: Vec<&str> = ["-j", "list"].iter().chain(what).copied().collect();
    let text = nft(&words, "")?;
    serde_json::from_str(&text).context(|| "reading nft's answer".into())
}

fn run(script: &str) -> Result<(), Error> {
    nft(&["-f", "-"], script).map(drop)
}

fn installed() -> bool {
    Command::new("nft").arg("-v").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

fn nft(words: &[&str], input: &str) -> Result<String, Error> {
    let child = Command::new("nft")
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let what = "Egress needs the program nft: install the package nftables";
            return Err(Error::caused(ErrorKind::Unsupported, what, error));
        }
        child => child.context(|| "starting nft".into())?,
    };
    // nft reads all of its input before it says anything. What it does not read, its exit status tells.
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().context(|| "waiting for nft".into())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let denied = said.contains("Operation not permitted");
    let kind = if denied { ErrorKind::PermissionDenied } else { ErrorKind::Kernel };
    // The first line says what; the rest repeats the script.
    Err(Error::new(kind, format!("nft {}: {}", words.join(" "), said.lines().next().unwrap_or_default())))
}
