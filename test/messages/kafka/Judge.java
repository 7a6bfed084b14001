// A reader that is not ours: Java's own consumer. It prints every record of a topic as "partition<TAB>offset<TAB>key<TAB>value", and after
// a line on its standard input it reads to the end that the topic has then, and ends.
//
// java -cp 'libs/*' Judge.java HOST:PORT TOPIC read_committed|read_uncommitted

import java.io.BufferedOutputStream;
import java.io.PrintStream;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class Judge {
  public static void main(String[] args) throws Exception {
    AtomicBoolean ending = new AtomicBoolean(false);
    Thread input = new Thread(() -> {
      try {
        System.in.read();
      } catch (Exception error) {
        error.printStackTrace();
      }
      ending.set(true);
    });
    input.setDaemon(true);
    input.start();
    Properties settings = new Properties();
    settings.put("bootstrap.servers", args[0]);
    settings.put("isolation.level", args[2]);
    settings.put("enable.auto.commit", "false");
    settings.put("default.api.timeout.ms", "120000");
    PrintStream out = new PrintStream(new BufferedOutputStream(System.out, 1 << 16), false, "UTF-8");
    try (KafkaConsumer<String, String> consumer =
        new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
      List<TopicPartition> partitions =
          consumer.partitionsFor(args[1]).stream()
              .map(info -> new TopicPartition(info.topic(), info.partition()))
              .collect(Collectors.toList());
      consumer.assign(partitions);
      consumer.seekToBeginning(partitions);
      Map<TopicPartition, Long> ends = null;
      while (true) {
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
          out.println(record.partition() + "\t" + record.offset() + "\t" + record.key() + "\t" + record.value());
        }
        out.flush();
        if (ends == null && ending.get()) ends = consumer.endOffsets(partitions);
        if (ends == null) continue;
        boolean done = true;
        for (TopicPartition partition : partitions) done &= consumer.position(partition) >= ends.get(partition);
        if (done) break;
      }
    }
    out.flush();
  }
}
