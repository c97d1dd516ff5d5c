package org.apache.pulsar.broker.delayed.bucket;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.file.Path;
import java.util.stream.StreamSupport;

/** What a request says; every name that is asked for must be given. */
record Arguments(JsonNode request) {
    String text(String name) {
        return required(name).asText();
    }

    long number(String name) {
        return required(name).asLong();
    }

    long[] numbers(String name) {
        return StreamSupport.stream(required(name).spliterator(), false).mapToLong(JsonNode::asLong).toArray();
    }

    Path path(String name) {
        return Path.of(text(name));
    }

    private JsonNode required(String name) {
        JsonNode value = request.get(name);
        if (value == null) {
            throw new IllegalArgumentException("the request has no " + name);
        }
        return value;
    }
}
