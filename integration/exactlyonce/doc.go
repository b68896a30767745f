// Command exactlyonce runs programs that promise to process each record exactly
// once against three brokers, kills the brokers and the programs with SIGKILL
// meanwhile, and then counts. It is what `just exactly-once` runs.
//
// Two proofs. streams is a word count with Kafka Streams and its guarantee
// exactly_once_v2: for each word the counts that it published must be 1, 2, 3…,
// none twice and none left out, up to how often the word was sent. copier is
// Apache Kafka's own VerifiableProducer, TransactionalMessageCopier with random
// aborts, and VerifiableConsumer in a row: what the first was told is written
// stands in the second's topic once, in order, and the third saw just that.
//
// With -old both run with Java clients that have the first protocol of
// transactions only, and each of whose first batches the brokers verify (P7).
// With -assigned the copiers are no members of a group: what a killed one had
// open is fenced by its transactional id alone. -vary has the seed choose.
//
// Both defend I8, I7, I3 and, by the offsets that are committed with the
// records, P9, P13 and G12; at the end no transaction may hold a partition back
// (I20, P12). The Java programs come from Maven, pinned in pom.xml, and are kept
// in the user's cache; -prepare only fetches them. How long a proof takes is for
// the machine to say: it fails by what was counted, or when nothing moves for
// minutes, and its last lines say why. -system kafka runs the same against Apache Kafka: a proof
// that fails there, too, is wrong.
//
// Files: the brokers in system.go, their deaths in deaths.go, programs in
// program.go and java.go, the proofs in streams.go and copier.go, what is read at
// their end in reading.go, the judgement in verdict.go, what the outputs say of a
// failure in report.go.
package main
