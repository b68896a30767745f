package metadata

import "encoding/json"

// Results with an error in them travel as JSON with the error's parts in its place.

type plainTopicResult TopicResult

// MarshalJSON writes Err so that UnmarshalJSON restores its text and the sentinels it matches.
func (r TopicResult) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		plainTopicResult
		Err *wireError `json:",omitempty"`
	}{plainTopicResult(r), newWireError(r.Err)})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (r *TopicResult) UnmarshalJSON(b []byte) error {
	var m struct {
		*plainTopicResult
		Err *wireError
	}
	m.plainTopicResult = (*plainTopicResult)(r)
	if err := json.Unmarshal(b, &m); err != nil {
		return err
	}
	r.Err = m.Err.err()
	return nil
}

type topicResults []TopicResult

func (rs topicResults) common() error {
	return commonError(len(rs), func(i int) error { return rs[i].Err })
}

type plainPartitionResult PartitionResult

// MarshalJSON writes Err so that UnmarshalJSON restores its text and the sentinels it matches.
func (r PartitionResult) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		plainPartitionResult
		Err *wireError `json:",omitempty"`
	}{plainPartitionResult(r), newWireError(r.Err)})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (r *PartitionResult) UnmarshalJSON(b []byte) error {
	var m struct {
		*plainPartitionResult
		Err *wireError
	}
	m.plainPartitionResult = (*plainPartitionResult)(r)
	if err := json.Unmarshal(b, &m); err != nil {
		return err
	}
	r.Err = m.Err.err()
	return nil
}

type partitionResults []PartitionResult

func (rs partitionResults) common() error {
	return commonError(len(rs), func(i int) error { return rs[i].Err })
}

type plainElectionResult ElectionResult

// MarshalJSON writes Err so that UnmarshalJSON restores its text and the sentinels it matches.
func (r ElectionResult) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		plainElectionResult
		Err *wireError `json:",omitempty"`
	}{plainElectionResult(r), newWireError(r.Err)})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (r *ElectionResult) UnmarshalJSON(b []byte) error {
	var m struct {
		*plainElectionResult
		Err *wireError
	}
	m.plainElectionResult = (*plainElectionResult)(r)
	if err := json.Unmarshal(b, &m); err != nil {
		return err
	}
	r.Err = m.Err.err()
	return nil
}

type electionResults []ElectionResult

func (rs electionResults) common() error {
	return commonError(len(rs), func(i int) error { return rs[i].Err })
}
