//! The threads that run a model. The library computes within the call, so calls have threads of their own,
//! one for each that may run at a time; whoever waits holds none.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use crate::nn::NnError;
use crate::nn::outputs::Scratch;

type Job = Box<dyn FnOnce(&mut Scratch) + Send>;

/// Threads that take jobs in the order in which they come. They end when this is dropped and the queue is
/// empty.
pub struct Workers(Sender<Job>);

impl Workers {
    /// So many threads.
    pub fn start(count: u32) -> std::io::Result<Self> {
        let (sender, queue) = mpsc::channel();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..count {
            let queue = queue.clone();
            std::thread::Builder::new().name("openvino".into()).spawn(move || work(&queue))?;
        }
        Ok(Self(sender))
    }

    /// Runs a job when its turn comes. One whose future was dropped by then isn't run.
    pub async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Scratch) -> T + Send + 'static,
    ) -> Result<T, NnError> {
        let (reply, answer) = tokio::sync::oneshot::channel();
        let job = move |scratch: &mut Scratch| {
            if !reply.is_closed() {
                // Whoever has gone away meanwhile wants no answer.
                let _ = reply.send(job(scratch));
            }
        };
        let stopped = || NnError::runtime("the model has stopped");
        self.0.send(Box::new(job)).map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())
    }
}

fn work(queue: &Mutex<Receiver<Job>>) {
    let mut scratch = Scratch::default();
    loop {
        // The lock is held while one waits; the others wait for the lock.
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match next {
            Ok(job) => job(&mut scratch),
            Err(_) => return,
        }
    }
}
