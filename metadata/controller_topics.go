package metadata

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// maxTopicName is the longest topic name, in bytes; with the partition number it still fits a directory name.
const maxTopicName = 249

// CheckTopicName reports whether a topic may have this name: 1 to 249 characters of [A-Za-z0-9._-], and not "." or ".."
// (S6). The error matches ErrInvalidTopic.
func CheckTopicName(name string) error {
	var why string
	switch {
	case name == "":
		why = "it is empty"
	case name == "." || name == "..":
		why = "it names a directory"
	case len(name) > maxTopicName:
		why = fmt.Sprintf("it has %d characters", len(name))
	default:
		for i := range len(name) {
			switch c := name[i]; {
			case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
			default:
				why = fmt.Sprintf("it has the character %q", name[i:i+1])
			}
		}
	}
	if why == "" {
		return nil
	}
	return &Error{
		Kind: ErrInvalidTopic,
		What: fmt.Sprintf("%s can't be a topic name", quoteShort(name)),
		Why:  why,
		Fix:  "use 1 to 249 of the characters a-z A-Z 0-9 . _ -",
	}
}

// CreateTopics creates the topics, each by itself, and returns when they can be seen in Image. With validateOnly it makes
// all checks and changes nothing.
//
// Errors of a topic: ErrTopicExists, ErrInvalidTopic (also for a name that differs from another topic's only in '.' and
// '_'), ErrInvalidPartitions, ErrInvalidReplicationFactor, ErrInvalidAssignment, ErrInvalidConfig, ErrInvalidRequest,
// ErrDuplicateResource, ErrPolicyViolation (too many partitions in one request), and those of every operation:
// ErrNotController, ErrBusy, ErrTimeout, ErrFailed, ErrClosed.
func (s *Store) CreateTopics(ctx context.Context, topics []NewTopic, validateOnly bool) []TopicResult {
	results, err := call(ctx, s, &opCreateTopics, createTopicsArgs{topics, validateOnly})
	return failedTopics(results, len(topics), func(i int) string { return topics[i].Name }, err)
}

// failedTopics returns results, or if there are none n of err.
func failedTopics(results []TopicResult, n int, name func(i int) string, err error) []TopicResult {
	if len(results) == n {
		return results
	}
	results = make([]TopicResult, n)
	for i := range results {
		results[i].fail(name(i), cmp.Or(err, ErrTimeout))
	}
	return results
}

func (s *Store) createTopics(ctx context.Context, topics []NewTopic, validateOnly bool) []TopicResult {
	results := make([]TopicResult, len(topics))
	request := &creation{store: s, validateOnly: validateOnly, names: make(map[string]int)}
	for _, t := range topics {
		request.names[t.Name]++
	}
	var plans []plan
	for i, t := range topics {
		plans = append(plans, plan{
			decide: func(im *Image) (command, error) { return request.decide(im, t, &results[i]) },
			done: func(value any, err error) {
				if created, ok := value.(*Topic); ok && err == nil {
					results[i].describe(created)
					s.logger.Info("topic created", "topic", created.Name, "id", created.ID, "partitions", len(created.Partitions))
				}
				results[i].fail(t.Name, topicError(t.Name, err))
			},
		})
	}
	s.carryOut(ctx, plans)
	return results
}

// creation is a CreateTopics request under way.
type creation struct {
	store        *Store
	validateOnly bool
	names        map[string]int // how often the request has each name

	// of the present round
	im         *Image
	placement  *placement
	effective  map[string]string
	partitions int
	collisions map[string]string // metric name → name, of topics accepted in this round
}

// decide checks one topic against im and decides where its partitions go.
func (r *creation) decide(im *Image, t NewTopic, out *TopicResult) (command, error) {
	if r.im != im {
		r.im, r.partitions, r.collisions = im, 0, make(map[string]string)
		r.placement = newPlacement(im, r.store.randomTurn())
		r.effective = r.store.effectiveConfig(im)
	}
	if r.names[t.Name] > 1 {
		return nil, duplicate("topic " + quoteShort(t.Name))
	}
	if err := r.store.room(); err != nil {
		return nil, err
	}
	if err := r.checkName(t.Name); err != nil {
		return nil, err
	}
	configs, err := r.checkConfigs(t)
	if err != nil {
		return nil, err
	}
	sets, err := r.place(t)
	if err != nil {
		return nil, err
	}
	r.collisions[metricName(t.Name)] = t.Name
	*out = TopicResult{
		Name:              t.Name,
		Partitions:        int32(len(sets)),
		ReplicationFactor: int16(len(sets[0].replicas)),
		Configs:           configs,
	}
	if r.validateOnly {
		return nil, nil
	}
	return &createTopic{id: r.store.newID(), name: t.Name, configs: configs, sets: sets}, nil
}

func (r *creation) checkName(name string) error {
	if err := CheckTopicName(name); err != nil {
		return err
	}
	if r.im.Topic(name) != nil {
		return topicExists(name)
	}
	other := r.im.st.collision(name)
	if other == "" {
		other = r.collisions[metricName(name)]
	}
	if other != "" {
		return collides(name, other)
	}
	return nil
}

// checkConfigs returns the topic's configs in canonical form.
func (r *creation) checkConfigs(t NewTopic) (map[string]string, error) {
	if len(t.Configs) == 0 {
		return nil, nil
	}
	configs := make(map[string]string, len(t.Configs))
	for _, key := range slices.Sorted(maps.Keys(t.Configs)) {
		value := t.Configs[key]
		if value == nil {
			return nil, &Error{
				Kind: ErrInvalidConfig,
				What: fmt.Sprintf("topic config %s of topic %s has no value", quoteShort(key), t.Name),
				Why:  "a null value is not supported for topic configs",
				Fix:  "leave the key out to get its default",
			}
		}
		canonical, err := CheckConfig(ConfigTopic, key, *value)
		if err != nil {
			return nil, err
		}
		configs[key] = canonical
	}
	if _, err := ResolveTopicSettings(r.effective, configs); err != nil {
		return nil, err
	}
	return configs, nil
}

// place decides on the replicas of every partition.
func (r *creation) place(t NewTopic) ([]replicaSet, error) {
	n := int(t.Partitions)
	if t.Assignments != nil {
		if t.Partitions != -1 || t.ReplicationFactor != -1 {
			return nil, &Error{
				Kind: ErrInvalidRequest,
				What: fmt.Sprintf("topic %s has both a replica assignment and a number of partitions or replicas", t.Name),
				Why:  "the assignment says both",
				Fix:  "leave both numbers at -1, or the assignment out",
			}
		}
		n = len(t.Assignments)
	} else if n == -1 {
		n = int(defaultPartitions(r.effective))
	}
	if n < 1 {
		kind, what := ErrInvalidPartitions, fmt.Sprintf("topic %s can't have %d partitions", t.Name, n)
		if t.Assignments != nil {
			kind, what = ErrInvalidAssignment, fmt.Sprintf("the replica assignment of topic %s is empty", t.Name)
		}
		return nil, &Error{Kind: kind, What: what, Why: "a topic has at least one partition", Fix: "ask for 1 or more, or -1 for the default"}
	}
	limit := r.store.cfg.MaxPartitionsPerRequest
	if n > limit-r.partitions {
		return nil, tooManyPartitions(t.Name, n, limit)
	}
	r.placement.begin(nil)
	if t.Assignments != nil {
		sets, err := r.placement.assign(r.im, t.Name, 0, t.Assignments, 0)
		if err == nil {
			r.partitions += n
		}
		return sets, err
	}
	factor := int(t.ReplicationFactor)
	if factor == -1 {
		factor = DefaultReplicationFactor(r.effective, len(r.placement.brokers))
	}
	if err := r.placement.checkFactor(t.Name, factor); err != nil {
		return nil, err
	}
	r.partitions += n
	return r.placement.spread(n, factor), nil
}

// checkFactor makes sure that factor replicas can be placed.
func (p *placement) checkFactor(topic string, factor int) error {
	switch {
	case factor < 1:
		return &Error{
			Kind: ErrInvalidReplicationFactor,
			What: fmt.Sprintf("topic %s can't have a replication factor of %d", topic, factor),
			Why:  "every partition has at least one replica",
			Fix:  "ask for 1 or more, or -1 for the default",
		}
	case factor > len(p.brokers):
		return &Error{
			Kind: ErrInvalidReplicationFactor,
			What: fmt.Sprintf("topic %s can't have a replication factor of %d", topic, factor),
			Why:  fmt.Sprintf("only %d broker(s) can take replicas", len(p.brokers)),
			Fix:  fmt.Sprintf("ask for at most %d, or add brokers first", len(p.brokers)),
		}
	case !slices.ContainsFunc(p.brokers, func(c *candidate) bool { return !c.absent }):
		return &Error{
			Kind: ErrInvalidReplicationFactor,
			What: fmt.Sprintf("topic %s can't be placed", topic),
			Why:  "no broker that can take replicas is there at the moment",
			Fix:  "try again when one of them is back",
		}
	}
	return nil
}

// CreatePartitions adds partitions to topics, each topic by itself.
//
// Errors of a topic: ErrUnknownTopic, ErrInvalidPartitions (Count is not more than there are), ErrInvalidAssignment,
// ErrInvalidReplicationFactor (not enough brokers), ErrDuplicateResource, ErrPolicyViolation, and those of every
// operation (see CreateTopics).
func (s *Store) CreatePartitions(ctx context.Context, topics []NewPartitions, validateOnly bool) []TopicResult {
	results, err := call(ctx, s, &opCreatePartitions, createPartitionsArgs{topics, validateOnly})
	return failedTopics(results, len(topics), func(i int) string { return topics[i].Topic }, err)
}

func (s *Store) createPartitions(ctx context.Context, topics []NewPartitions, validateOnly bool) []TopicResult {
	results := make([]TopicResult, len(topics))
	names := make(map[string]int)
	for _, t := range topics {
		names[t.Topic]++
	}
	var (
		round     *Image
		places    *placement
		requested int
		plans     []plan
	)
	for i, t := range topics {
		decide := func(im *Image) (command, error) {
			if round != im {
				round, requested, places = im, 0, newPlacement(im, s.randomTurn())
			}
			if names[t.Topic] > 1 {
				return nil, duplicate("topic " + quoteShort(t.Topic))
			}
			if err := s.room(); err != nil {
				return nil, err
			}
			old := im.Topic(t.Topic)
			if old == nil {
				return nil, unknownTopic(t.Topic)
			}
			sets, err := s.placeMore(im, places, old, t, requested)
			if err != nil {
				return nil, err
			}
			requested += len(sets)
			results[i].describe(old)
			results[i].Partitions = t.Count
			if validateOnly {
				return nil, nil
			}
			return &createPartitions{id: old.ID, expectedCount: len(old.Partitions), sets: sets}, nil
		}
		done := func(value any, err error) {
			if changed, ok := value.(*Topic); ok && err == nil {
				results[i].describe(changed)
				s.logger.Info("partitions added", "topic", changed.Name, "id", changed.ID, "partitions", len(changed.Partitions))
			}
			results[i].fail(t.Topic, topicError(t.Topic, err))
		}
		plans = append(plans, plan{decide: decide, done: done})
	}
	s.carryOut(ctx, plans)
	return results
}

// placeMore decides on the replicas of the partitions that t adds to the topic old.
func (s *Store) placeMore(im *Image, p *placement, old *Topic, t NewPartitions, requested int) ([]replicaSet, error) {
	present := len(old.Partitions)
	more := int(t.Count) - present
	if more < 1 {
		return nil, &Error{
			Kind: ErrInvalidPartitions,
			What: fmt.Sprintf("topic %s can't be changed to %d partitions", t.Topic, t.Count),
			Why:  fmt.Sprintf("it has %d, and partitions are only ever added", present),
			Fix:  fmt.Sprintf("ask for more than %d", present),
		}
	}
	if limit := s.cfg.MaxPartitionsPerRequest; more > limit-requested {
		return nil, tooManyPartitions(t.Topic, more, limit)
	}
	factor := len(old.Partitions[0].Replicas)
	p.begin(old.Partitions)
	if t.Assignments == nil {
		if err := p.checkFactor(t.Topic, factor); err != nil {
			return nil, err
		}
		return p.spread(more, factor), nil
	}
	if len(t.Assignments) != more {
		return nil, &Error{
			Kind: ErrInvalidAssignment,
			What: fmt.Sprintf("topic %s gets %d partition(s) more, and %d assignment(s) were given", t.Topic, more, len(t.Assignments)),
			Why:  "every new partition needs one, and only the new ones",
			Fix:  fmt.Sprintf("give %d, or none", more),
		}
	}
	return p.assign(im, t.Topic, present, t.Assignments, factor)
}

// DeleteTopics deletes the topics, each by itself, and leaves tombstones of their ids.
//
// Errors of a topic: ErrUnknownTopic, ErrUnknownTopicID, ErrInvalidRequest (name and id, or neither),
// ErrDuplicateResource, and those of every operation (see CreateTopics).
func (s *Store) DeleteTopics(ctx context.Context, topics []TopicRef) []TopicResult {
	results, err := call(ctx, s, &opDeleteTopics, topics)
	return failedTopics(results, len(topics), func(i int) string { return topics[i].Name }, err)
}

func (s *Store) deleteTopics(ctx context.Context, topics []TopicRef) []TopicResult {
	results := make([]TopicResult, len(topics))
	// One request id for the whole request: whoever else deletes the same topic is another request.
	request := requestID(s.newID())
	seen := make(map[TopicID]int)
	names := make(map[string]int)
	first := s.Image()
	for _, ref := range topics {
		id := ref.ID
		if t := first.Topic(ref.Name); t != nil {
			id = t.ID
		}
		if ref.Name != "" {
			names[ref.Name]++
		}
		if !id.IsZero() {
			seen[id]++
		}
	}
	var plans []plan
	for i, ref := range topics {
		decide := func(im *Image) (command, error) {
			t, err := resolveRef(im, ref)
			if err != nil {
				return nil, err
			}
			if seen[t.ID] > 1 || ref.Name != "" && names[ref.Name] > 1 {
				return nil, duplicate("topic " + t.Name)
			}
			results[i].describe(t)
			return &deleteTopic{id: t.ID, request: request}, nil
		}
		done := func(_ any, err error) {
			switch {
			case err == nil:
				s.logger.Info("topic deleted", "topic", results[i].Name, "id", results[i].ID)
			case errors.Is(err, ErrUnknownTopicID) && ref.Name != "":
				err = unknownTopic(ref.Name) // deleted by somebody else after decide
			}
			if err != nil {
				results[i] = TopicResult{Name: ref.Name, ID: ref.ID, Partitions: -1, ReplicationFactor: -1, Err: err}
			}
		}
		plans = append(plans, plan{decide: decide, done: done})
	}
	s.carryOut(ctx, plans)
	return results
}

func resolveRef(im *Image, ref TopicRef) (*Topic, error) {
	switch {
	case (ref.Name == "") == ref.ID.IsZero():
		return nil, &Error{
			Kind: ErrInvalidRequest,
			What: "a topic to delete is named by its name or by its id",
			Why:  "the request has both or neither",
			Fix:  "give one of them",
		}
	case ref.Name != "":
		if t := im.Topic(ref.Name); t != nil {
			return t, nil
		}
		return nil, unknownTopic(ref.Name)
	}
	if t := im.TopicByID(ref.ID); t != nil {
		return t, nil
	}
	return nil, &Error{
		Kind: ErrUnknownTopicID,
		What: fmt.Sprintf("there is no topic with id %s", ref.ID),
		Why:  "it was deleted, or never existed",
		Fix:  "list the topics to see the present ids",
	}
}

// describe fills in what a topic is like.
func (r *TopicResult) describe(t *Topic) {
	*r = TopicResult{
		Name:              t.Name,
		ID:                t.ID,
		Partitions:        int32(len(t.Partitions)),
		ReplicationFactor: int16(len(t.Partitions[0].Replicas)),
		Configs:           t.Configs,
	}
}

// fail makes r the result of a refused topic, if err is not nil.
func (r *TopicResult) fail(name string, err error) {
	if err != nil {
		*r = TopicResult{Name: name, Partitions: -1, ReplicationFactor: -1, Err: err}
	}
}

// topicError gives an answer of Apply, which is a bare sentinel, the words that the same refusal has before the proposal.
func topicError(name string, err error) error {
	switch err {
	case ErrTopicExists:
		return topicExists(name)
	case ErrUnknownTopicID:
		return unknownTopic(name)
	case ErrInvalidTopic:
		return collides(name, "")
	}
	return err
}

func topicExists(name string) error {
	return &Error{
		Kind: ErrTopicExists,
		What: fmt.Sprintf("topic %s already exists", name),
		Why:  "a topic of that name was created before",
		Fix:  "use it, take another name, or delete it first",
	}
}

func unknownTopic(name string) error {
	return &Error{
		Kind: ErrUnknownTopic,
		What: fmt.Sprintf("there is no topic %s", quoteShort(name)),
		Why:  "it was deleted, or never existed",
		Fix:  "list the topics to see which there are",
	}
}

func collides(name, other string) error {
	why := "another topic's name differs from it only in '.' and '_', and they share the name of their metrics"
	if other != "" {
		why = fmt.Sprintf("topic %s differs from it only in '.' and '_', and they share the name of their metrics", other)
	}
	return &Error{
		Kind: ErrInvalidTopic,
		What: fmt.Sprintf("%s can't be a topic name", name),
		Why:  why,
		Fix:  "take a name that differs in more than that",
	}
}

func duplicate(what string) error {
	return &Error{
		Kind: ErrDuplicateResource,
		What: what + " is in the request more than once",
		Why:  "one request can change each thing only once",
		Fix:  "name it once",
	}
}

func tooManyPartitions(topic string, n, limit int) error {
	return &Error{
		Kind: ErrPolicyViolation,
		What: fmt.Sprintf("%d partitions of topic %s are too many for this request", n, topic),
		Why:  fmt.Sprintf("one request may create at most %d partitions", limit),
		Fix:  "create the topic with fewer, and add partitions in further requests",
	}
}

// randomTurn is where the rotation of equal brokers begins.
func (s *Store) randomTurn() int {
	s.random.Lock()
	defer s.random.Unlock()
	return s.random.IntN(1 << 20)
}
