"""Python's Kafka clients behind the line protocol of the client tests (see ../README.md).

usage: client_check.py confluent-kafka|kafka-python|aiokafka HOST:PORT
"""
import asyncio
import base64
import sys
import time

PATIENCE = 30
LIMIT = 10 << 20  # bytes of a record or request: above the broker's limit, so that the broker is who refuses


def encode(b):
    return "-" if b is None else base64.b64encode(b).decode()


def decode(s):
    return None if s == "-" else base64.b64decode(s)


def load(name):
    with open(name) as f:
        for line in f:
            fields = line.rstrip("\n").split("\t")
            headers = [(fields[i], decode(fields[i + 1])) for i in range(4, len(fields), 2)]
            yield int(fields[1]), decode(fields[2]), decode(fields[3]), headers


def line_of(offset, timestamp, key, value, headers):
    return "\t".join([str(offset), str(timestamp), encode(key), encode(value)] + [x for k, v in headers for x in (k, encode(v))]) + "\n"


class Confluent:
    def __init__(self, bootstrap):
        import confluent_kafka
        import confluent_kafka.admin

        self.ck, self.admin = confluent_kafka, confluent_kafka.admin
        self.base = {"bootstrap.servers": bootstrap, "log_level": 3}

    def metadata(self, topic):
        return len(self.admin.AdminClient(self.base).list_topics(topic, 20).topics[topic].partitions)

    def create(self, topic, partitions):
        adm = self.admin.AdminClient(self.base)
        adm.create_topics([self.admin.NewTopic(topic, partitions)])[topic].result(20)

    def delete(self, topic):
        adm = self.admin.AdminClient(self.base)
        adm.delete_topics([topic])[topic].result(20)

    def offset(self, topic, partition, at):
        ck = self.ck
        c = ck.Consumer({**self.base, "group.id": "client-check"})
        try:
            if at < 0:
                low, high = c.get_watermark_offsets(ck.TopicPartition(topic, partition), 20)
                return low if at == -2 else high
            return c.offsets_for_times([ck.TopicPartition(topic, partition, at)], 20)[0].offset
        finally:
            c.close()

    def produce(self, topic, partition, codec, idempotent, records):
        conf = {"acks": "all", "compression.type": codec, "enable.idempotence": idempotent, "message.max.bytes": LIMIT, "linger.ms": 5,
                "max.in.flight": 1, "batch.size": 500_000}
        p, failed = self.ck.Producer({**self.base, **conf}), []
        for timestamp, key, value, headers in records:
            p.produce(topic, value, key, partition, timestamp=timestamp, headers=headers, on_delivery=lambda e, _: failed.append(e) if e else None)
            p.poll(0)
        left = p.flush(PATIENCE)
        if failed:
            raise self.ck.KafkaException(failed[0])
        if left:
            raise TimeoutError(f"{left} records not delivered")

    def consume(self, topic, partition, start, n):
        c = self.ck.Consumer({**self.base, "group.id": "client-check", "auto.offset.reset": "earliest", "enable.auto.commit": False})
        c.assign([self.ck.TopicPartition(topic, partition, start)])
        end, got = time.monotonic() + PATIENCE, 0
        while got < n and time.monotonic() < end:
            for m in c.consume(min(n - got, 1000), 0.5):
                if m.error():
                    raise self.ck.KafkaException(m.error())
                got += 1
                yield m.offset(), m.timestamp()[1], m.key(), m.value(), m.headers() or []
        c.close()


class KafkaPython:
    def __init__(self, bootstrap):
        import kafka
        import kafka.admin

        self.k, self.admin_module, self.servers = kafka, kafka.admin, [bootstrap]

    def admin(self):
        return self.k.KafkaAdminClient(bootstrap_servers=self.servers)

    def metadata(self, topic):
        c = self.k.KafkaConsumer(bootstrap_servers=self.servers)
        try:
            return len(c.partitions_for_topic(topic) or ())
        finally:
            c.close()

    def create(self, topic, partitions):
        a = self.admin()
        a.create_topics([self.admin_module.NewTopic(topic, partitions, 1)])
        a.close()

    def delete(self, topic):
        a = self.admin()
        a.delete_topics([topic])
        a.close()

    def offset(self, topic, partition, at):
        tp = self.k.TopicPartition(topic, partition)
        c = self.k.KafkaConsumer(bootstrap_servers=self.servers)
        try:
            if at == -1:
                return c.end_offsets([tp])[tp]
            if at == -2:
                return c.beginning_offsets([tp])[tp]
            found = c.offsets_for_times({tp: at})[tp]
            return -1 if found is None else found.offset
        finally:
            c.close()

    def produce(self, topic, partition, codec, idempotent, records):
        p = self.k.KafkaProducer(bootstrap_servers=self.servers, acks="all", compression_type=None if codec == "none" else codec, enable_idempotence=idempotent,
                                 max_request_size=LIMIT, batch_size=512 << 10, linger_ms=5, max_in_flight_requests_per_connection=1)
        try:
            sent = [p.send(topic, value=value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp) for timestamp, key, value, headers in records]
            p.flush(PATIENCE)
            for f in sent:
                f.get(PATIENCE)
        finally:
            p.close(5)

    def consume(self, topic, partition, start, n):
        tp = self.k.TopicPartition(topic, partition)
        c = self.k.KafkaConsumer(bootstrap_servers=self.servers, group_id=None, auto_offset_reset="earliest", enable_auto_commit=False)
        try:
            c.assign([tp])
            c.seek(tp, start)
            end, got = time.monotonic() + PATIENCE, 0
            while got < n and time.monotonic() < end:
                for batch in c.poll(500, max_records=min(n - got, 1000)).values():
                    for m in batch:
                        got += 1
                        yield m.offset, m.timestamp, m.key, m.value, m.headers
        finally:
            c.close()


class AioKafka:
    def __init__(self, bootstrap):
        import aiokafka
        import aiokafka.admin

        self.k, self.admin_module, self.bootstrap = aiokafka, aiokafka.admin, bootstrap
        self.loop = asyncio.new_event_loop()

    def run(self, coroutine):
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, 2 * PATIENCE))

    async def started(self, client, work):
        await client.start()
        try:
            return await work(client)
        finally:
            await client.stop()

    def on_admin(self, work):
        async def go():
            a = self.admin_module.AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
            await a.start()
            try:
                return await work(a)
            finally:
                await a.close()
        return self.run(go())

    def on_consumer(self, work):
        async def go():
            return await self.started(self.k.AIOKafkaConsumer(bootstrap_servers=self.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False), work)
        return self.run(go())

    def metadata(self, topic):
        async def work(a):
            return len((await a.describe_topics([topic]))[0]["partitions"])
        return self.on_admin(work)

    def create(self, topic, partitions):
        async def work(a):
            resp = await a.create_topics([self.admin_module.NewTopic(topic, partitions, 1)])
            bad = [e for e in resp.topic_errors if e[1]]
            if bad:
                raise RuntimeError(str(bad))
        self.on_admin(work)

    def delete(self, topic):
        async def work(a):
            resp = await a.delete_topics([topic])
            bad = [e for e in resp.topic_error_codes if e[1]]
            if bad:
                raise RuntimeError(str(bad))
        self.on_admin(work)

    def offset(self, topic, partition, at):
        tp = self.k.TopicPartition(topic, partition)

        async def work(c):
            if at == -1:
                return (await c.end_offsets([tp]))[tp]
            if at == -2:
                return (await c.beginning_offsets([tp]))[tp]
            found = (await c.offsets_for_times({tp: at}))[tp]
            return -1 if found is None else found.offset
        return self.on_consumer(work)

    def produce(self, topic, partition, codec, idempotent, records):
        async def work(p):
            sent = [await p.send(topic, value=value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp) for timestamp, key, value, headers in records]
            for f in sent:
                await f

        async def go():
            p = self.k.AIOKafkaProducer(bootstrap_servers=self.bootstrap, acks="all", compression_type=None if codec == "none" else codec, enable_idempotence=idempotent,
                                        max_request_size=LIMIT, max_batch_size=512 << 10, linger_ms=5)
            await self.started(p, work)
        self.run(go())

    def consume(self, topic, partition, start, n):
        tp = self.k.TopicPartition(topic, partition)

        async def work(c):
            c.assign([tp])
            c.seek(tp, start)
            end, got = time.monotonic() + PATIENCE, []
            while len(got) < n and time.monotonic() < end:
                for batch in (await c.getmany(timeout_ms=500, max_records=min(n - len(got), 1000))).values():
                    got += [(m.offset, m.timestamp, m.key, m.value, m.headers) for m in batch]
            return got
        return self.on_consumer(work)


def carry_out(client, op, args):
    if op == "metadata":
        return client.metadata(args[0])
    if op == "create":
        return client.create(args[0], int(args[1])) or ""
    if op == "delete":
        return client.delete(args[0]) or ""
    if op == "offset":
        return client.offset(args[0], int(args[1]), int(args[2]))
    if op == "produce":
        return client.produce(args[0], int(args[1]), args[2], args[3] == "true", load(args[4])) or ""
    if op == "consume":
        count = 0
        with open(args[4], "w") as f:
            for record in client.consume(args[0], int(args[1]), int(args[2]), int(args[3])):
                f.write(line_of(*record))
                count += 1
        return count
    raise ValueError(f"unknown command {op}")


def main():
    client = {"confluent-kafka": Confluent, "kafka-python": KafkaPython, "aiokafka": AioKafka}[sys.argv[1]](sys.argv[2])
    for line in sys.stdin:
        op, *args = line.rstrip("\n").split("\t")
        try:
            answer = f"ok\t{carry_out(client, op, args)}"
        except Exception as e:
            answer = "error\t" + " ".join(f"{type(e).__name__}: {e}".split())
        print(answer, flush=True)


main()
