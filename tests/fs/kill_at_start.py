# SPDX-License-Identifier: Apache-2.0
"""A daemon that is killed while it comes up or leaves dies at once, whatever it was doing.

A process that asks something of its own mount waits for itself: killed before the answer it cannot end,
nor can its connection and whoever uses that."""
import os
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'lib'))
from kvmount import Mount, scale, wait_for          # noqa: E402

STARTS = 60


def start(m):
    return m.spawn('dram=16M', 'none')


def measure(m):
    """Seconds from the start of a daemon until the mount is there."""
    begin = time.monotonic()
    proc = start(m)
    while not os.path.ismount(m.path):
        time.sleep(0.0005)
    took = time.monotonic() - begin
    kill(m, proc, 'a daemon that has come up dies')
    return took


def kill(m, proc, what):
    proc.kill()
    try:
        wait_for(lambda: proc.poll() is not None, 10, what)
    except TimeoutError:
        subprocess.run(['umount', '-f', m.path])    # the connection ends, and with it the process
        raise
    subprocess.run(['umount', '-l', m.path], stderr=subprocess.DEVNULL)


def main():
    r = random.Random()
    with Mount(opts='dram=16M') as m:
        m.umount()
        took = min(measure(m) for _ in range(3))
        for i in range(scale(STARTS)):
            proc = start(m)
            time.sleep(r.uniform(0.7, 1.3) * took)  # a random point, not an event: that is the test
            kill(m, proc, 'a daemon that was coming up dies')
        for i in range(scale(STARTS // 3)):
            proc = start(m)
            wait_for(lambda: os.path.ismount(m.path), 10, 'it mounts')
            proc.send_signal(signal.SIGTERM)
            time.sleep(r.uniform(0, 0.01))
            kill(m, proc, 'a daemon that was leaving dies')
    print('ok')


if __name__ == '__main__':
    main()
