"""Sends to every partition with confluent-kafka (librdkafka) at its defaults, and prints a line for each answer.

    failover_load.py BOOTSTRAP PAUSE_SECONDS TOPIC:PARTITIONS...

`ack TOPIC/PARTITION` or `error TEXT`, until stdin is closed.
"""

import sys
import threading

from confluent_kafka import Producer

bootstrap, pause, topics = sys.argv[1], float(sys.argv[2]), [t.split(":") for t in sys.argv[3:]]
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()


def answered(err, msg):
    print(f"error {err}" if err else f"ack {msg.topic()}/{msg.partition()}")


producer = Producer({"bootstrap.servers": bootstrap})
value = b"x" * 100
while not ended.wait(pause):
    for name, partitions in topics:
        for p in range(int(partitions)):
            try:
                producer.produce(name, value, partition=p, on_delivery=answered)
            except BufferError:
                pass
    producer.poll(0)
    sys.stdout.flush()
producer.purge()
