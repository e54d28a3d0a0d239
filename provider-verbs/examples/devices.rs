//! Prints the RDMA devices of this machine, or why there are none.

fn main() {
    match kestrel_verbs::devices(|_| true) {
        Ok(devices) => devices.iter().for_each(|device| println!("{device}")),
        Err(error) => println!("{error}"),
    }
}
