//! The kernel's own complaints. In: its log from a moment on. Out: the records that say something broke.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::fcntl::OFlag;

/// How the kernel begins what must never be there.
const ALARMS: [&str; 8] = [
    "WARNING: ",
    "BUG: ",
    "kernel BUG at ",
    "Oops",
    "general protection fault",
    "INFO: task ",
    "rcu: INFO: ",
    "unregister_netdevice: waiting for ",
];

/// A reader at a place in the kernel's log. The log is one for the machine: what another test provokes meanwhile
/// is seen too.
#[derive(Debug)]
pub struct KernelLog(File);

impl KernelLog {
    /// Begins at what the kernel says from now on.
    ///
    /// # Errors
    /// Where `/dev/kmsg` may not be read.
    pub fn from_now() -> Result<Self> {
        let mut file = File::options()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open("/dev/kmsg")
            .context("opening /dev/kmsg")?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self(file))
    }

    /// The records since the last call, as `/dev/kmsg` gives them: `PREFIX,SEQUENCE,MICROSECONDS,FLAGS;MESSAGE`
    /// (Documentation/ABI/testing/dev-kmsg).
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn records(&mut self) -> Result<Vec<String>> {
        let (mut records, mut buffer) = (Vec::new(), vec![0; 8192]);
        loop {
            match self.0.read(&mut buffer) {
                Ok(0) => return Ok(records),
                Ok(len) => {
                    records.push(String::from_utf8_lossy(buffer.get(..len).unwrap_or_default()).into_owned());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(records),
                // Overwritten before they were read: the next read goes on with the oldest that is left.
                Err(error) if error.raw_os_error() == Some(Errno::EPIPE as i32) => {}
                Err(error) => return Err(error).context("reading /dev/kmsg"),
            }
        }
    }

    /// Fails when the kernel complained since the last call.
    ///
    /// # Errors
    /// With its complaints.
    pub fn check(&mut self) -> Result<()> {
        let complaints: Vec<String> =
            self.records()?.iter().filter_map(|record| complaint(record)).map(str::to_owned).collect();
        ensure!(complaints.is_empty(), "the kernel complains: {}", complaints.join("; "));
        Ok(())
    }
}

/// The message of a record, if it is the kernel's (facility 0; what programs write has another) and an alarm.
fn complaint(record: &str) -> Option<&str> {
    let (head, message) = record.split_once(';')?;
    let prefix: u32 = head.split(',').next()?.parse().ok()?;
    let message = message.lines().next()?;
    let alarm = ALARMS.iter().any(|start| message.starts_with(start));
    (prefix >> 3 == 0 && alarm).then_some(message)
}

#[cfg(test)]
mod tests {
    use super::complaint;

    #[test]
    fn only_the_kernels_alarms_count() {
        let warning =
            "4,812,33,-;WARNING: CPU: 1 PID: 7 at net/core/skbuff.c:1 skb_x+0x1/0x2\n SUBSYSTEM=net\n";
        assert_eq!(complaint(warning), Some("WARNING: CPU: 1 PID: 7 at net/core/skbuff.c:1 skb_x+0x1/0x2"));
        assert!(complaint("1,9,3,-;BUG: kernel NULL pointer dereference, address: 0\n").is_some());
        assert!(complaint("0,9,3,-;Oops: 0000 [#1] SMP\n").is_some());
        assert_eq!(complaint("6,9,3,-;veth-web-1: entered promiscuous mode\n"), None);
        assert_eq!(complaint("12,9,3,-;WARNING: a program wrote this\n"), None);
        assert_eq!(complaint("6,9,3,-;a line that mentions a BUG: inside\n"), None);
    }
}
