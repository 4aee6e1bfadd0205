//! Receivers on threads of their own. In: an interface's queues. Out: packets in one bounded queue, for any number of
//! consumers.
//!
//! Packets are lent, not copied: a consumer that holds them holds their buffers. What finds the queue full goes back
//! to its pool and is counted, so that a consumer that hangs does not keep the workers from their rounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver as Queue, Sender, bounded};

use super::front::Front;
use super::packet::Packet;
use super::program::Program;
use super::receiver::{Receiver, Tally};
use crate::error::{Context, Error};

/// How long a round waits for packets.
const WAIT: Duration = Duration::from_millis(5);

/// Threads that take an interface's packets. Dropped, they end, and everything is as before.
pub struct Workers {
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    overflow: Arc<AtomicU64>,
    program: Program,
}

impl Workers {
    /// Starts a thread for each queue. The packets of all of them come out of one queue with room for so many.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(front: Front, room: usize) -> Result<(Self, Queue<Packet>), Error> {
        let (receivers, program) = front.split();
        let (queue, packets) = bounded(room.max(1));
        let mut workers = Self {
            end: Arc::default(),
            threads: Vec::with_capacity(receivers.len()),
            overflow: Arc::default(),
            program,
        };
        for receiver in receivers {
            let (end, overflow, queue) = (workers.end.clone(), workers.overflow.clone(), queue.clone());
            let thread = std::thread::Builder::new()
                .name("xsk".into())
                .spawn(move || work(receiver, &queue, &end, &overflow))
                .context(|| "starting a worker's thread".into())?;
            workers.threads.push(thread);
        }
        Ok((workers, packets))
    }

    /// Packets that found the queue full.
    pub fn overflow(&self) -> u64 {
        self.overflow.load(Ordering::Relaxed)
    }

    /// What became of each queue's packets.
    pub fn tallies(&self) -> Vec<Tally> {
        self.program.tallies()
    }

    /// Whether every worker is at work: one ends when its interface is gone.
    pub fn is_alive(&self) -> bool {
        self.threads.iter().all(|thread| !thread.is_finished())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn work(mut receiver: Receiver, queue: &Sender<Packet>, end: &AtomicBool, overflow: &AtomicU64) {
    while !end.load(Ordering::Relaxed) {
        match receiver.receive(WAIT) {
            Ok(batch) => {
                batch.lend(|packet| {
                    if queue.try_send(packet).is_err() {
                        overflow.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a worker ends");
                return;
            }
        }
    }
}
