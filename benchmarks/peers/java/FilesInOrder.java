import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.LinkedHashSet;
import java.util.Optional;
import java.util.PriorityQueue;
import java.util.Set;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.connector.file.src.AbstractFileSource;
import org.apache.flink.connector.file.src.FileSourceSplit;
import org.apache.flink.connector.file.src.assigners.FileSplitAssigner;
import org.apache.flink.connector.file.table.FileSystemTableFactory;
import org.apache.flink.table.connector.source.DynamicTableSource;
import org.apache.flink.table.connector.source.SourceProvider;
import org.apache.flink.table.data.RowData;

/**
 * Flink's own connector for files, with one difference: readers get the files in the order of their
 * names. Flink hands them out in the order of a hash set, and a reader that goes back in time finds
 * its rows late and drops them. What is read and how is Flink's own code.
 */
public class FilesInOrder extends FileSystemTableFactory {
    @Override
    public String factoryIdentifier() {
        return "files-in-order";
    }

    @Override
    public DynamicTableSource createDynamicTableSource(Context context) {
        return inOrder(super.createDynamicTableSource(context));
    }

    /** The table source itself, but for the source that it provides and its copies. */
    private static DynamicTableSource inOrder(DynamicTableSource source) {
        return (DynamicTableSource)
                Proxy.newProxyInstance(
                        FilesInOrder.class.getClassLoader(),
                        interfaces(source.getClass()).toArray(new Class<?>[0]),
                        (proxy, method, arguments) -> {
                            Object found;
                            try {
                                found = method.invoke(source, arguments);
                            } catch (InvocationTargetException failure) {
                                throw failure.getCause();
                            }
                            if (found instanceof DynamicTableSource) {
                                return inOrder((DynamicTableSource) found);
                            }
                            if (found instanceof SourceProvider) {
                                return SourceProvider.of(
                                        assigned(((SourceProvider) found).createSource()));
                            }
                            return found;
                        });
    }

    private static Set<Class<?>> interfaces(Class<?> kind) {
        Set<Class<?>> found = new LinkedHashSet<>();
        for (Class<?> each = kind; each != null; each = each.getSuperclass()) {
            found.addAll(Set.of(each.getInterfaces()));
        }
        return found;
    }

    /** Flink's builder has a setter for the assigner; its table source does not pass one on. */
    private static Source<RowData, ?, ?> assigned(Source<RowData, ?, ?> source)
            throws ReflectiveOperationException {
        Field assigner = AbstractFileSource.class.getDeclaredField("assignerFactory");
        assigner.setAccessible(true);
        FileSplitAssigner.Provider byName = ByName::new;
        assigner.set(source, byName);
        return source;
    }

    /** Hands out the file with the lowest name first. */
    private static final class ByName implements FileSplitAssigner {
        private final PriorityQueue<FileSourceSplit> waiting =
                new PriorityQueue<>(
                        Comparator.comparing((FileSourceSplit split) -> split.path().getName())
                                .thenComparing(FileSourceSplit::offset));

        ByName(Collection<FileSourceSplit> splits) {
            waiting.addAll(splits);
        }

        @Override
        public Optional<FileSourceSplit> getNext(String host) {
            return Optional.ofNullable(waiting.poll());
        }

        @Override
        public void addSplits(Collection<FileSourceSplit> splits) {
            waiting.addAll(splits);
        }

        @Override
        public Collection<FileSourceSplit> remainingSplits() {
            return new ArrayList<>(waiting);
        }
    }
}
