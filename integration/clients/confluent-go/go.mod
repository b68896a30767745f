module github.com/millrace/millrace/integration/clients/confluent-go

go 1.26

require github.com/confluentinc/confluent-kafka-go/v2 v2.11.1
